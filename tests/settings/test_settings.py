"""Settings: one declaration from which constructor, checks, help and records follow."""

from __future__ import annotations

import io
import math
import os
import sys
from abc import ABC
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import cloudpickle
import numpy as np
import pytest
import yaml

import rayfl
from rayfl.data import Synthetic
from rayfl.engine import Engine
from rayfl.errors import BadCode, BadValue, Conflict, Missing, Unknown, UserError
from rayfl.methods import Facts, FedAvg, FedProx
from rayfl.nets import MLP, Architecture
from rayfl.run import main
from rayfl.settings import Settings, above, at_least, at_most, below
from rayfl.settings.arguments import arguments_of, convert_value
from rayfl.settings.base import class_names
from rayfl.settings.imports import local_imports
from rayfl.settings.reader import build_object
from rayfl.system.own_code import code_digests
from tests.support.federations import federation_from
from tests.support.own_modules import OwnModules
from tests.support.refusals import refused


class Dish(Settings, ABC, place="dish"):
    kind: ClassVar[str] = "any"

    @property
    def course(self) -> str:
        return "main"


class Soup(Dish):
    """A soup."""

    salt: Annotated[float, at_least(0), below(1)] = 0.5
    """How salty."""
    spoons: Annotated[int, above(0), "0: drink it"] | None = None
    heat: Literal["hot", "cold"] = "hot"


class Stew(Soup):
    def __init__(self, salt: float = 0.1) -> None:
        self.salt = salt


class Borscht(Soup):
    beets: Annotated[int, at_most(1000)]
    salt: float = 2.0
    kind: str = "red"
    course = "starter"

    def __post_init__(self) -> None:
        if self.heat == "cold" and not self.spoons:
            raise Conflict("dish.heat", "is cold, which needs dish.spoons")


def test_a_class_is_a_keyword_only_dataclass_by_itself():
    soup = Borscht(beets=3)
    assert vars(soup) == {"salt": 2.0, "spoons": None, "heat": "hot", "beets": 3}
    assert (soup.kind, soup.course) == ("red", "starter")  # no settings in the base, so none here
    assert list(arguments_of(Borscht)) == ["salt", "spoons", "heat", "beets"]
    with refused(BadCode, Soup._place):
        Soup(0.1)
    with refused(Unknown, f"{Soup._place}.kind"):
        Soup(kind="red")
    with refused(Missing, f"{Soup._place}.beets"):
        Borscht()
    with refused(BadValue, "dish"):
        build_object(Soup, [0.5], "dish")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"salt": -1}, "dish.salt is -1: it must be at least 0 and below 1"),
        ({"salt": 1.0}, "dish.salt is 1.0: it must be at least 0 and below 1"),
        ({"salt": math.inf}, "dish.salt is inf: it must be finite and at least 0 and below 1"),
        ({"salt": "x"}, "dish.salt is 'x': it must be a number"),
        ({"spoons": 0}, "dish.spoons is 0: it must be above 0 (0: drink it)"),
        ({"heat": "warm"}, "dish.heat is 'warm': it must be 'hot' or 'cold'"),
        ({"heat": "colt"}, "dish.heat is 'colt': it must be 'hot' or 'cold'; did you mean cold?"),
    ],
)
def test_types_and_bounds_are_checked(given, says):
    with refused(BadValue, says.partition(" ")[0]) as caught:
        Soup(**given)
    assert str(caught.value) == says


def test_a_subclass_may_have_other_bounds_and_checks():
    for value in (-math.inf, math.nan):
        with refused(BadValue, "dish.salt") as caught:
            Borscht(beets=1, salt=value)
        assert str(caught.value).endswith("it must be finite")
    with refused(BadValue, "dish.beets"):
        Borscht(beets=np.int64(1001))
    with refused(Conflict, "dish.heat"):
        Borscht(beets=1, heat="cold")


def test_what_a_list_holds_is_converted_too():
    assert convert_value("x", [np.int64(3), np.int8(2)], tuple[int, ...]) == (3, 2)
    assert convert_value("x", (Path("a"), "b"), list[str]) == ["a", "b"]


class Mild(Soup):
    salt = 0.25


class Milder(Mild):
    heat = "cold"


class Odd(Milder):
    salt = "much"


class Sharp(FedProx):
    mu = 0.5


class Short(Synthetic):
    train, test = 60, 20


class Wide(MLP):
    hidden = (4, 3)


def test_a_plain_attribute_is_the_new_default_of_an_option():
    assert vars(Milder()) == {"salt": 0.25, "spoons": None, "heat": "cold"}
    assert (Milder(salt=0.75).salt, Odd(salt=0.75).salt) == (0.75, 0.75)
    with refused(BadValue, "dish.salt"):
        Odd()
    assert Wide() == Wide(hidden=[4, 3]) != MLP(hidden=[4, 3])
    assert Wide() != Wide(hidden=[4])
    assert Stew(salt=0.75).salt == 0.75
    with refused(BadCode, "Silent.factor"):
        type("Silent", (ByHand,), {"factor": 0.25})


@pytest.mark.parametrize(("given", "mu"), [([], 0.5), (["--method.mu", "0.25"], 0.25)])
def test_a_run_has_the_defaults_of_a_subclass(tmp_path, given, mu):
    ours = {"method": "Sharp", "data": "Short", "net": "Wide"}
    chosen = [word for name, cls in ours.items() for word in (f"--{name}", f"{__name__}.{cls}")]
    rest = ["--clients", "2", "--rounds", "1", "--engine", "Inline", "--quiet", "true", "--output"]
    assert main([*chosen, *given, *rest, str(tmp_path)]) == 0
    config = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert config["method"]["init_args"]["mu"] == mu
    assert config["data"]["init_args"] | {"train": 60, "test": 20} == config["data"]["init_args"]
    assert config["net"]["init_args"]["hidden"] == [4, 3]


def test_a_class_travels_by_value():
    made = cloudpickle.loads(cloudpickle.dumps(_local()))(depth=2)
    assert (made.depth, made.mu) == (2, 0.5)


def _local() -> type:
    from rayfl.methods import FedProx

    class Deep(FedProx):
        mu: float = 0.5
        depth: Annotated[int, at_least(1)] = 1

    return Deep


class ByHand(FedAvg):
    """A method as they were written before.

    Args:
        factor: a factor.
    """

    views: tuple[str, ...] = ("personal", "global")

    def __init__(self, factor: Annotated[float, above(0)] = 0.5) -> None:
        self.factor = factor


class Derived(ByHand):
    facts = Facts(averaging="uniform")


def test_a_constructor_of_its_own_goes_on_working(tmp_path):
    assert vars(Derived(0.25)) == {"factor": 0.25}
    for value, says in ((0.0, "above 0"), ("x", "a number")):
        with pytest.raises(UserError, match=rf"method\.factor is {value!r}: it must be {says}"):
            Derived(value)
    small = "--data Synthetic --data.train 60 --data.test 20 --clients 2 --rounds 1 --engine Inline"
    chosen = f"--quiet true --method {__name__}.Derived --method.factor 0.25 --output {tmp_path / 'run'}"
    assert main([*small.split(), *chosen.split()]) == 0
    assert "factor: 0.25" in (tmp_path / "run" / "config.yaml").read_text()


def test_help_lists_options_with_their_bounds():
    shown = io.StringIO()
    with redirect_stdout(shown), pytest.raises(SystemExit):
        federation_from(["--method.help", "FedProx"])
    text = " ".join(shown.getvalue().split())
    assert "--method.mu MU Weight of the proximal term; 0 is FedAvg." in text
    assert "at least 0" in text
    assert "--method.averaging" not in text


def test_classes_of_tests_are_no_choices():
    assert class_names(Engine) == ["Inline", "Ray"]
    assert class_names(int) == []
    assert "Tiny" not in class_names(Architecture)


def test_modules_of_the_current_folder_come_last_and_for_a_while(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = [path for path in sys.path if path]
    monkeypatch.setattr(sys, "path", [*before])
    monkeypatch.delenv(rayfl.STARTED, raising=False)
    with local_imports():
        assert sys.path == [*before, str(tmp_path)]
        assert os.environ[rayfl.STARTED] == str(tmp_path)
        with local_imports():
            assert sys.path == [*before, str(tmp_path)]
    assert sys.path == before
    assert rayfl.STARTED not in os.environ


def test_the_source_of_a_class_is_that_of_its_definition(own_modules: OwnModules) -> None:
    own_modules.load("edited", "import rayfl.methods\nclass Mine(rayfl.methods.FedAvg): ...\n")
    own_modules.write("edited", "")
    found = code_digests(["edited"])
    own_modules.load("edited", "")
    assert code_digests(["edited"]) != found
