"""The user's own code runs on actors as it is in the process that starts the run."""

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rayfl import Inline, Ray, Training
from rayfl.errors import Conflict
from rayfl.system.own_code import code_digests
from tests.support.federations import bytes_of_run, small
from tests.support.own_modules import OwnModules
from tests.support.refusals import refused

ray: Any = pytest.importorskip("ray")

from ray import cloudpickle  # noqa: E402

from rayfl.engine.hosts import put_by_value  # noqa: E402

PARTS = """
class Step:
    size = 1.0

class Lost(Exception):
    pass
"""
MINE = """
import torch, own_parts
from rayfl.methods import FedAvg

FACTOR = 1.0

class Own(FedAvg):
    factor_of_class = 1.0
    step = own_parts.Step()

    async def local_update(self, client, state, down):
        if client.round == 2:
            raise own_parts.Lost("client")
        return await super().local_update(client, state, down)

    def aggregate(self, server, up, cohort):
        assert isinstance(self.step, own_parts.Step)
        factor = FACTOR * self.factor_of_class * self.step.size * self.edited()
        return {"weights": server["weights"] + factor * (up["weights"] - server["weights"])}

    def edited(self):
        return 1.0

def net(shape, classes) -> torch.nn.Module:
    hidden = torch.nn.LazyLinear(round(40 * FACTOR))
    return torch.nn.Sequential(torch.nn.Flatten(), hidden, torch.nn.LazyLinear(classes))

def loss(scores, targets):
    return FACTOR * (scores.logsumexp(1) - scores.gather(1, targets[:, None])[:, 0])

def share(scores, labels):
    return FACTOR * (scores.argmax(1) == labels).double().mean()
"""


@pytest.mark.usefixtures("ray_runtime")
def test_what_a_script_has_changed_is_changed_on_actors(tmp_path: Path, own_modules: OwnModules) -> None:
    """A global, class attributes, and a file edited after its import; exceptions arrive as what they are."""
    parts: Any = own_modules.load("own_parts", PARTS)
    own: Any = own_modules.load("own_method", MINE)
    own.FACTOR, own.Own.factor_of_class, parts.Step.size = 0.5, 0.5, 0.5
    own_modules.write("own_method", MINE.replace("return 1.0", "return 0.5"))
    settings: dict[str, Any] = {"net": "own_method.net", "metrics": ["own_method.share"], "rounds": 3}
    settings["training"] = Training(batch_size=20, loss="own_method.loss")
    for engine in (Inline(), Ray(actors=1)):
        with pytest.raises(parts.Lost):
            small(tmp_path / type(engine).__name__, method=own.Own(), engine=engine, **settings).run()
    assert bytes_of_run(tmp_path / "Inline") == bytes_of_run(tmp_path / "Ray")
    assert "own_method.net" in (tmp_path / "Ray" / "config.yaml").read_text()
    assert not cloudpickle.list_registry_pickle_by_value()


CACHED = "from functools import cache\nOwn.table = cache(lambda self: 1.0)"
LOCKED = "from threading import Lock\nOwn.lock = Lock()"
LATE = "def late():\n    import own_parts\nOwn.late = late"


@pytest.mark.parametrize("more", [CACHED, LOCKED, LATE])
def test_what_cannot_be_sent_by_value_is_told_and_compared(
    own_modules: OwnModules, more: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray, "put", cloudpickle.dumps)
    own_modules.load("own_parts", PARTS)
    sent = {}
    for text in (MINE, f"{MINE}\n{more}\n"):
        method = own_modules.load("own_method", text).Own()
        sent[text] = put_by_value(method, code_digests(["own_method.Own"]))
        assert type(pickle.loads(sent[text])) is type(method)
    assert [record.name for record in caplog.records if record.name != "ray._private.worker"] == ["rayfl"]
    own_modules.load("own_method", f"{MINE}\n{more}\nFACTOR = 0.5\n")
    pickle.loads(sent[MINE])
    with refused(Conflict, "own_method"):
        pickle.loads(sent[text])


def test_code_that_names_torch_and_classes_goes_by_value() -> None:
    """`torch` and `.classes` in one function look like the module `torch.classes`, which no pickle takes."""

    def zeros(client: Any) -> torch.Tensor:
        return torch.zeros(client.classes + len(torch.ops.__name__))

    sent = cloudpickle.loads(cloudpickle.dumps(zeros))
    assert sent(SimpleNamespace(classes=3)).shape == (12,)
