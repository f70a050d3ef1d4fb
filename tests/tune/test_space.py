"""Tune spaces: what files may say, and the points that they mean."""

import inspect
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from rayfl.config.parser import federation_from
from rayfl.config.table_file import options
from rayfl.errors import UserError
from rayfl.methods import METHODS
from rayfl.randomness import numpy_generator
from rayfl.record.description import dump
from rayfl.tune.command import main
from rayfl.tune.space import Dimension, Point, Scheduler, Space, _short, scored_on, tidy
from tests.support.sweeps import ROOT, SPACES, write

SEVERAL = "[{method.mu: [0.1, 1.0]}, {training.lr: [0.1, 0.5]}, {training.clip: [3.0]}]"


def space(folder: Path, search: str, **changes: str) -> Space:
    return Space.load(write(folder, search=f"search: {search}", **changes))


def test_a_grid_is_a_product(tmp_path):
    points = space(tmp_path, "{method.mu: [0.1, 1.0], training.lr: {grid: [0.01, 0.1, 0.5]}}").points()
    assert [p.label for p in points][:2] == ["mu=0.1, lr=0.01", "mu=0.1, lr=0.1"]
    assert len(points) == 6
    assert points[5].values == {"method.mu": 1.0, "training.lr": 0.5}
    federation = federation_from(options(points[5].settings))
    assert (federation.method.mu, federation.training.lr, federation.training.batch_size) == (1.0, 0.5, 20)
    assert (federation.cell.table, federation.cell.row) == ("tiny", "mu=1, lr=0.5")


def test_each_of_several_searches_sweeps_by_itself(tmp_path):
    """Without repeating the base; a key that a search leaves out has the base's value, or the default."""
    points = space(tmp_path, SEVERAL).points()
    assert [list(p.values.values()) for p in points] == [
        [0.1, 0.1, 0.0],
        [1.0, 0.1, 0.0],
        [1.0, 0.5, 0.0],
        [1.0, 0.1, 3.0],
    ]


def test_a_value_can_stand_for_a_bundle_of_settings(tmp_path):
    kinds = "{mild: {method.mu: 0.1}, plain: {method: FedAvg, net: CNN}}"
    points = space(tmp_path, f"[{{kind: {{grid: {kinds}}}}}, {{training.lr: [0.2]}}]").points()
    assert [p.values for p in points] == [
        {"kind": "mild", "training.lr": 0.1},
        {"kind": "plain", "training.lr": 0.1},
        {"kind": None, "training.lr": 0.2},
    ]
    assert "method.mu" not in points[1].settings
    assert points[1].settings["net"] == "CNN"


def test_a_bundle_is_in_use_where_all_of_its_settings_are(tmp_path):
    kinds = "{mild: {method.mu: 0.1, training.clip: 2.0}}"
    other = "{method.mu: [0.1], training.clip: [1.0, 2.0]}"
    points = space(tmp_path, f"[{{kind: {{grid: {kinds}}}}}, {other}]").points()
    assert [p.values["kind"] for p in points] == ["mild", None]  # with clip 2.0 it is the first point again


def test_draws_are_those_of_the_file(tmp_path):
    search = (
        "{a: {choice: {x: {training.clip: 1.0}, y: {training.clip: 2.0}}}, method.mu: {uniform: [1, 3]}, "
    )
    search += "training.lr: {loguniform: [0.0001, 1.0]}, training.epochs: {randint: [1, 4]}, clients: [2, 3]}"
    drawn = space(tmp_path, search, samples="samples: 8")
    points = drawn.points()
    assert len(points) == 16
    values = {key: [p.values[key] for p in points] for key in drawn.keys}
    assert set(values["training.epochs"]) == {1, 2, 3}
    assert set(values["a"]) == {"x", "y"}
    assert all(1 <= mu <= 3 for mu in values["method.mu"])
    assert 3 <= sum(lr < 0.01 for lr in values["training.lr"]) <= 13, "half of them, in logarithms"
    fewer = space(tmp_path, search.replace("[2, 3]", "[2]"), samples="samples: 3")
    assert [p.values for p in fewer.points()] == [p.values for p in points[:3]]
    other = replace(fewer, draw_seed=1)
    assert not {p.label for p in points} & {p.label for p in other.points()}


def test_every_dimension_has_draws_of_its_own(tmp_path):
    search = "{method.mu: {uniform: [0, 1]}, training.lr: {uniform: [0.0, 1]}}"
    for point in space(tmp_path, search, samples="samples: 4").points():
        assert point.values["method.mu"] != point.values["training.lr"]


def test_every_search_has_draws_of_its_own(tmp_path):
    search = "[{method.mu: {uniform: [0, 1]}, clients: [3, 4]}, {training.lr: {uniform: [0.0, 1]}}]"
    points = space(tmp_path, search, samples="samples: 2").points()
    drawn = [p.values["method.mu"] for p in points[:4]] + [p.values["training.lr"] for p in points[4:]]
    assert len(set(drawn)) == 6


def test_the_range_of_randint_is_that_of_numpy():
    rng = np.random.default_rng(0)
    assert {Dimension("x", "randint", low=0, high=2).draw(rng) for _ in range(50)} == {0, 1}


def test_changes_win_over_the_base(tmp_path):
    points = space(tmp_path, "{method.mu: [0.1, 1.0]}").points({"training.lr": 0.3})
    assert [p.values["method.mu"] for p in points] == [0.1, 1.0]
    assert {p.settings["training.lr"] for p in points} == {0.3}


def test_numbers_are_those_of_the_federation(tmp_path):
    """A number of the command line or the base is a text there, and 1e-3 is one in a file of YAML."""
    key = "data.partition.alpha"
    search = f"[{{{key}: [1e-1, 1.0]}}, {{training.lr: {{loguniform: [1e-3, 1.0]}}}}]"
    made = space(tmp_path, search, more="{data.partition: Dirichlet}")
    points = made.points({key: "0.1"})
    assert [p.values[key] for p in points] == [0.1, 1.0, 0.1]
    assert points[0].label.startswith("alpha=0.1, ")
    assert (made.searches[1][0].low, made.searches[1][0].high) == (0.001, 1.0)
    first, other, again = scored_on(points)
    assert first == again != other


def test_changes_of_what_is_searched(tmp_path):
    """They are refused where every point has a value of its own, and count for the others."""
    with pytest.raises(UserError, match=r"--method\.mu has no effect, .* searches method\.mu: leave it out"):
        space(tmp_path, "{method.mu: [0.1, 1.0]}").points({"method.mu": 5.0})
    parts = space(tmp_path, "[{method.mu: [0.1, 1.0]}, {training.lr: [0.2]}]")
    assert [p.settings["method.mu"] for p in parts.points({"method.mu": 5.0})] == [0.1, 1.0, 5.0]


def test_changes_that_no_point_keeps_are_refused(tmp_path):
    """A bundle sets the key itself, or names another class."""
    kinds = "{kind: {grid: {norm: {method: FedBN, net: LeNet}, plain: {method: FedAvg, net: CNN}}}}"
    for key in ("net", "method.mu"):
        with pytest.raises(UserError, match=rf"--{key} has no effect, because .* replaces {key} in every"):
            space(tmp_path, kinds).points({key: "3"})
    assert len(space(tmp_path, kinds).points({"net": "CNN"})) == 2


def test_a_searched_data_set_is_where_the_command_line_says(tmp_path, monkeypatch):
    monkeypatch.delenv("RAYFL_DATA", raising=False)
    made = space(tmp_path, "{data: [CIFAR10, MNIST, EmbeddedDigits]}", base="base: {clients: 3}")
    roots = [point.settings.get("data.root") for point in made.points({"data.root": "there"})]
    assert roots == ["there", "there", None]


def test_bases(tmp_path):
    """A cell of a table, a run's own configuration, and settings that win over them."""
    table = ROOT.parent / "examples" / "embedded" / "methods.yaml"
    base = f"base: {{config: {table}, row: Ditto, column: labels, method.mu: 3.0}}"
    cell = Space.load(write(tmp_path, base=base))
    assert cell.base["method"] == "Ditto"
    assert cell.base["data.partition"] == "Dirichlet"
    assert cell.base["method.mu"] == 3.0
    assert cell.base_name == "labels"
    settings = Space.load(write(tmp_path)).points()[0].settings
    (tmp_path / "config.yaml").write_text(dump(federation_from(options(settings))))
    (tmp_path / "again.yaml").write_text("sweep: again\nbase: config.yaml\nsearch: {method.mu: [0.0]}\n")
    again = Space.load(tmp_path / "again.yaml")
    (one, other) = (s.points()[0].settings for s in (again, Space.load(write(tmp_path))))
    built = [federation_from(options(s)) for s in (one, other)]
    for federation in built:
        federation.cell = None
    first, second = (yaml.safe_load(dump(federation)) for federation in built)
    assert first == second


BAD = [
    ({"sweep": ""}, "it has no 'sweep'"),
    ({"extra": "extra: 1"}, "there is no 'extra' in a tune space"),
    ({"search": "search: {seed: [1]}"}, "which the sweep decides"),
    ({"search": "search: {engine.threads: [1, 2]}"}, "has 'engine.threads', which changes no result"),
    ({"search": "search: {a: {grid: {b: {engine: Ray}}}}"}, "search.a has 'engine', which changes"),
    ({"search": "search: {method.mu: 3}"}, "must be one of grid, choice"),
    ({"search": "search: {method.mu: {grid: []}}"}, "must be a list of values"),
    ({"search": "search: {method.mu: [1.0, 1.0]}"}, "has a value twice"),
    ({"search": "search: {method.mu: {uniform: [2, 1]}}"}, "must lie below the upper end"),
    ({"search": "search: {method.mu: {loguniform: [0, 1]}}"}, "must lie above 0"),
    ({"search": "search: {method.mu: {randint: [0.5, 1]}}"}, "must be whole numbers"),
    ({"metric": "metric: test"}, "metric is 'test': it must be 'accuracy' or 'worst_decile'"),
    ({"scheduler": "scheduler: hyper"}, "scheduler.name is 'hyper'"),
    ({"scheduler": "scheduler: {name: asha, graze: 3}"}, "there is no 'graze' in a scheduler"),
    ({"scheduler": "scheduler: {name: asha, grace: 0}"}, "scheduler.grace is 0"),
    ({"scheduler": "scheduler: pbt", "seeds": "seeds: [0, 1]"}, "give one seed"),
    ({"scheduler": "scheduler: pbt", "search": "search: {clients: [2, 3]}"}, "clients is not one that can"),
    ({"scheduler": "scheduler: asha", "best": "best: false"}, "would choose between trials"),
    ({"seeds": "seeds: [0, 0]"}, "different whole numbers"),
    ({"samples": "samples: 0"}, "samples is 0"),
    ({"base": "base: {row: x}"}, "base names a row, and no table"),
    ({"base": "base: {config: nowhere.yaml}"}, "cannot be read"),
    ({"search": "search: {method.nu: [1]}"}, "the point method.nu=1 cannot work: method Ditto has no"),
    ({"search": "search: {method.mu: [-1.0]}"}, "method.mu is -1"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "says"), BAD, ids=[b[1][:40] for b in BAD])
def test_bad_spaces(tmp_path, capsys, changes, says):
    assert main([write(tmp_path, **changes), "--list"]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_the_shipped_spaces_hold_the_papers_grids():
    spaces = {path.stem: Space.load(path) for path in SPACES}
    grids = {
        (name, d.key): list(d.values) for name, s in spaces.items() for search in s.searches for d in search
    }
    assert grids["fdse", "method.lam"] == [0.01, 0.1, 1.0]
    assert grids["fdse", "method.tau"] == [0.001, 0.01, 0.1, 0.5]
    assert grids["fdse", "method.beta"] == [1e-4, 1e-3, 0.01, 0.1, 1.0]
    assert grids["fdse", "net.G"] == [2, 3, 4, 8]
    assert grids["fedios", "method.lam"] == [0.1, 1, 10, 50]
    assert grids["fedios", "method.alpha"] == [0.1, 0.3, 0.5, 0.6, 0.7, 0.9]
    assert spaces["fedios"].base["method.ortho_reg_on"] == "cos"
    assert grids["fedco2", "method.mu"] == [0, 0.01, 0.1, 0.5, 1, 2]
    assert grids["dcpfl", "method.num_virtual"] == [600, 800, 1000, 2000, 5000]
    assert grids["fedprox", "method.mu"] == grids["ditto", "method.mu"] == [1e-4, 1e-3, 0.01, 0.1, 1]
    assert grids["feddyn", "method.alpha"] == [0.001, 0.01, 0.03, 0.1]
    assert grids["moon", "method.mu"] == [0.1, 1, 5, 10]
    assert grids["fedheal", "method.tau"] == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert grids["fedsr", "method.alpha_l2r"] == [0.01, 0.05, 0.1]
    assert grids["fedsr", "method.alpha_cmi"] == [0.0005, 0.001, 0.3]
    assert grids["dcpfl", "method.lam"] == [0.01, 0.03, 0.1, 0.3, 1]
    assert grids["fedcp", "method.lam"] == [0.1, 1, 5]
    assert grids["fdse_training", "training.lr"] == [0.001, 0.01, 0.05, 0.1, 0.5]
    assert grids["dcpfl_training", "training.epochs"] == [1, 10, 30, 50, 100]
    assert [name for name, s in spaces.items() if not s.best] == ["dirichlet_alpha"]
    assert all(s.name == name for name, s in spaces.items())
    assert len(spaces["fdse"].points()) == 12 + 4 + 3


def test_points_of_the_shipped_spaces_are_federations_of_every_method():
    """Of each the last point: options that the method has. Methods without a space have no numbers."""
    searched = set()
    for space in map(Space.load, SPACES):
        method = federation_from(options(space.points()[-1].settings)).method
        searched |= {(type(method).__name__, d.key) for search in space.searches for d in search}
    for name, cls in METHODS.items():
        numbers = [
            f"method.{option}"
            for option, parameter in inspect.signature(cls).parameters.items()
            if isinstance(parameter.default, int | float) and not isinstance(parameter.default, bool)
        ]
        if numbers and name not in WITHOUT_A_SPACE:
            assert {(name, key) for key in numbers} & searched, name


WITHOUT_A_SPACE = {"FedBN"}
"""FedBN's number says how its statistics are renewed on an unseen domain, which is no sweep of training."""


def test_small_losses_are_good_unless_the_file_says_otherwise(tmp_path):
    for metric, mode in (("accuracy", "max"), ("worst_decile", "max"), ("loss", "min")):
        assert Space.load(write(tmp_path, metric=f"metric: {metric}")).mode == mode
    assert Space.load(write(tmp_path, metric="metric: loss", mode="mode: max")).mode == "max"


def test_schedulers_have_defaults(tmp_path):
    assert Space.load(write(tmp_path)).scheduler == Scheduler()
    assert Space.load(write(tmp_path, scheduler="scheduler: asha")).scheduler == Scheduler("asha")


def test_what_a_file_says_and_what_it_leaves_out(tmp_path):
    """Every entry under its own name."""
    left_out = Space.load(write(tmp_path, title=""))
    assert (left_out.name, left_out.title, left_out.base_name) == ("tiny", "", "base")
    assert (left_out.samples, left_out.draw_seed, left_out.seeds, left_out.at_once) == (1, 0, (0,), None)
    assert (left_out.metric, left_out.mode, left_out.best) == ("accuracy", "max", True)
    entries = {"samples": 2, "draw_seed": 3, "at_once": 4, "metric": "worst_decile", "mode": "min"}
    changes = {key: f"{key}: {value}" for key, value in entries.items()}
    said = Space.load(
        write(tmp_path, title="title: A b", best="best: false", seeds="seeds: [5, 6]", **changes)
    )
    assert (said.title, said.best, said.seeds) == ("A b", False, (5, 6))
    assert {key: getattr(said, key) for key in entries} == entries


def test_the_defaults_and_bounds_of_schedulers():
    assert vars(Scheduler()) == {
        "name": "none",
        "grace": 1,
        "reduction": 3.0,
        "min_trials": 3,
        "interval": 5,
        "quantile": 0.25,
        "resample": 0.25,
    }
    for allowed in (
        {"quantile": 0.5},
        {"resample": 0.0},
        {"resample": 1.0},
        {"reduction": 1.01},
        {"interval": 1},
    ):
        Scheduler(**allowed)
    for refused in ({"quantile": 0.0}, {"quantile": 0.51}, {"resample": 1.1}, {"resample": -0.1},
                    {"reduction": 1.0}, {"interval": 0}, {"min_trials": 0}):  # fmt: skip
        with pytest.raises(UserError, match=f"scheduler.{next(iter(refused))} is"):
            Scheduler(**refused)


def test_a_draw_belongs_to_its_number_and_its_dimension(tmp_path):
    """Numbers go on from one combination of the grid to the next, and dimensions count those that draw."""
    search = "{clients: [2, 3], method.mu: {uniform: [1, 3]}, training.lr: {loguniform: [0.01, 1.0]}}"
    points = space(tmp_path, search, samples="samples: 2", draw_seed="draw_seed: 7").points()
    for number, point in enumerate(points):
        uniform, logarithm = (
            numpy_generator(7, "sweep", number, dimension).uniform(low, high)
            for dimension, low, high in ((0, 1, 3), (1, np.log(0.01), 0.0))
        )
        wanted = {"clients": 2 + number // 2, "method.mu": uniform, "training.lr": np.exp(logarithm)}
        assert point.values == pytest.approx(wanted, rel=1e-12)


def test_the_number_of_points_is_grids_times_draws(tmp_path):
    """The number of points is grids times draws search by search."""
    search = (
        "[{clients: [2, 3], training.clip: [1.0, 2.0, 3.0], method.mu: {uniform: [0, 1]}}, {clients: [4, 5]}]"
    )
    found = space(tmp_path, search, samples="samples: 4")
    assert found.count == len(found.points()) == 2 * 3 * 4 + 2


def test_labels_name_every_point_apart(tmp_path):
    """Also where values differ in digits that are not shown, and keys in their last part."""
    points = space(tmp_path, "{method.mu: [0.123456, 0.123457]}").points()
    assert [p.label for p in points] == ["mu=0.1235", "mu=0.1235 (1)"]
    assert [p.settings["cell"]["row"] for p in points] == [p.label for p in points]
    assert [tidy(value) for value in (0.123456, 12345.6, None, 12345, True)] == [
        "0.1235",
        "1.235e+04",
        "-",
        "12345",
        "True",
    ]
    keys = ["training.lr", "method.lr", "method.mu", "clients"]
    assert [_short(key, keys) for key in keys] == ["training.lr", "method.lr", "mu", "clients"]


def test_rounds_of_a_point_are_those_of_its_federation(tmp_path):
    assert [p.rounds for p in space(tmp_path, "{rounds: [2, 4]}").points()] == [2, 4]


def test_settings_of_the_base_win_over_its_file(tmp_path):
    """Settings of the base win over its file and what the sweep decides is left out."""
    settings = Space.load(write(tmp_path)).points()[0].settings
    (tmp_path / "config.yaml").write_text(dump(federation_from(options(settings | {"seed": 5}))))
    found = Space.load(write(tmp_path, base="base: {config: config.yaml, method.mu: 3.0}"))
    assert found.base["method.mu"] == 3.0
    assert found.base["clients"] == 4
    assert found.base_name == "config"
    assert not {"seed", "output", "resume", "cell"} & found.base.keys()


APART = ("data", "data.noise", "data.partition.alpha", "clients", "unseen", "protocol")
SAME = ("augment", "normalise", "image_size", "verify", "download", "cache")
LEARNING = ("training.lr", "method", "method.mu", "net", "rounds", "engine")


@pytest.mark.parametrize(
    ("key", "apart"),
    [
        *((key, True) for key in APART),
        *((f"data.{key}", False) for key in SAME),
        *((key, False) for key in LEARNING),
    ],
)
def test_points_that_only_learn_otherwise_are_scored_alike(key, apart):
    """Points are scored on the same where only learning differs."""
    points = [Point(str(value), {key: value}, {key: value}, 9) for value in (1, 2)]
    assert (len(set(scored_on(points))) == 2) is apart


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"scheduler": "scheduler: pbt", "at_once": "at_once: 2"}, "leave at_once out"),
        (
            {"scheduler": "scheduler: pbt", "search": "search: [{method.mu: [0.1]}, {rounds: [2]}]"},
            "one search",
        ),
        ({"scheduler": "scheduler: median", "best": "best: false"}, "would choose between trials"),
        ({"search": "search: {method.mu: {uniform: [1, 1]}}"}, "must lie below the upper end"),
    ],
)
def test_spaces_that_contradict_themselves(tmp_path, changes, says):
    with pytest.raises(UserError, match=says):
        Space.load(write(tmp_path, **changes))


def test_the_base_names_one_cell_of_a_table(tmp_path):
    table = ROOT.parent / "examples" / "embedded" / "methods.yaml"
    with pytest.raises(UserError, match="base must name a column"):
        Space.load(write(tmp_path, base=f"base: {{config: {table}, row: Ditto}}"))
    with pytest.raises(UserError, match="base must name a row"):
        Space.load(write(tmp_path, base=f"base: {{config: {table}, column: labels}}"))
