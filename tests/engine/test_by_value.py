"""The user's own code runs on actors as it is in the process that starts the run."""

import importlib
import pickle
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from rayfl import Inline, Ray, Training
from rayfl.engine.base import Plan
from rayfl.nets import LeNet
from tests.support.federations import bytes_of_run, small

ray: Any = pytest.importorskip("ray")

from ray import cloudpickle  # noqa: E402

from rayfl.engine.by_value import put_by_value  # noqa: E402

PARTS = """
import enum

class Step(enum.Enum):
    WHOLE = 1.0
    HALF = 0.5

class Lost(Exception):
    pass

def size():
    return 1.0
"""
MINE = """
import torch
import own_parts
from own_parts import Step
from rayfl.methods import FedAvg

FACTOR = 1.0

class Own(FedAvg):
    raises: bool = False
    step = Step.HALF
    factor_of_class = 1.0

    async def local_update(self, client, state, down):
        if self.raises:
            raise own_parts.Lost("client")
        return await super().local_update(client, state, down)

    def aggregate(self, server, up, cohort):
        assert isinstance(self.step, Step) and self.step is own_parts.Step.HALF
        factor = FACTOR * self.factor_of_class * own_parts.size() * self.edited()
        return {"weights": server["weights"] + factor * (up["weights"] - server["weights"])}

    def edited(self):
        return 1.0

def net(shape, classes) -> torch.nn.Module:
    hidden = torch.nn.LazyLinear(round(40 * FACTOR))
    return torch.nn.Sequential(torch.nn.Flatten(), hidden, torch.nn.LazyLinear(classes))

def share(scores, labels):
    return FACTOR * (scores.argmax(1) == labels).double().mean()
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two modules of the user's own, of which one imports the other; neither can be imported elsewhere."""
    (tmp_path / "own_parts.py").write_text(PARTS)
    (tmp_path / "own_method.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("own_method")
    for name in ("own_method", "own_parts"):
        del sys.modules[name]


@pytest.mark.usefixtures("ray_runtime")
def test_what_a_script_has_changed_is_changed_on_actors(tmp_path: Path, own: Any) -> None:
    """A global, a class attribute, a function, and a file that is edited after its import."""
    own.FACTOR, own.Own.factor_of_class = 0.5, 0.5
    own.own_parts.size = lambda: 0.5
    (tmp_path / "own_method.py").write_text(MINE.replace("return 1.0", "return 0.5"))
    settings: dict[str, Any] = {"net": "own_method.net", "metrics": ["own_method.share"], "rounds": 2}
    for engine in (Inline(), Ray(actors=1)):
        small(tmp_path / type(engine).__name__, method=own.Own(), engine=engine, **settings).run()
    assert bytes_of_run(tmp_path / "Inline") == bytes_of_run(tmp_path / "Ray")
    assert "own_method.net" in (tmp_path / "Ray" / "config.yaml").read_text()
    assert not cloudpickle.list_registry_pickle_by_value()


@pytest.mark.usefixtures("ray_runtime")
def test_exceptions_of_ones_own_arrive_as_what_they_are(tmp_path: Path, own: Any) -> None:
    with pytest.raises(own.own_parts.Lost):
        small(tmp_path / "run", method=own.Own(raises=True), engine=Ray(actors=1), rounds=1).run()


ARRIVES = """
import importlib, pickle, sys
from pathlib import Path
from rayfl import UserError

sent, module = Path("sent").read_bytes(), Path("own_method.py")
print(pickle.loads(sent).method.edited())
module.write_text(module.read_text().replace("return 1.0", "return 0.5"))
del sys.modules["own_method"]
importlib.invalidate_caches()
try:
    pickle.loads(sent)
except UserError as error:
    print(error.place)
"""


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sends a method, and returns it as it is on the way."""
    monkeypatch.setattr(ray, "put", cloudpickle.dumps)
    return lambda method: put_by_value(Plan(method, LeNet(), Training(), 0, Ray()))


def with_more(own: Any, more: str) -> Any:
    """Return a module that was edited, and imported anew."""
    file = Path(own.__file__)
    file.write_text(f"{file.read_text()}\n{more}\n")
    del sys.modules[own.__name__]
    importlib.invalidate_caches()
    return importlib.import_module(own.__name__)


CACHED = "from functools import cache\nOwn.table = cache(lambda self: 1.0)"
LOCKED = "from threading import Lock\nOwn.lock = Lock()"
LATE = "def late():\n    import own_parts\nOwn.late = late"


@pytest.mark.parametrize("more", [CACHED, LOCKED, LATE])
def test_what_cannot_be_sent_by_value_is_told(
    own: Any, more: str, sent: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert repr(pickle.loads(sent(own.Own())).method) == "Own()"
    assert not caplog.records
    sent(with_more(own, more).Own())
    assert len(caplog.records) == 1


def test_code_that_goes_by_its_name_is_compared(tmp_path: Path, own: Any, sent: Any) -> None:
    (tmp_path / "sent").write_bytes(sent(with_more(own, CACHED).Own()))
    done = subprocess.run([sys.executable, "-c", ARRIVES], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["1.0", "own_method"], done.stderr


def test_compiled_code_goes_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: Any, caplog: pytest.LogCaptureFixture
) -> None:
    compiled: Any = types.ModuleType("own_compiled")
    compiled.__file__ = str(tmp_path / "own_compiled.so")
    Path(compiled.__file__).touch()
    monkeypatch.setitem(sys.modules, "own_compiled", compiled)
    exec("from rayfl.methods import FedAvg\nclass Own(FedAvg): ...", vars(compiled))
    sent(compiled.Own())
    assert "(own_compiled)" in caplog.text
