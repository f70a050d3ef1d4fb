"""Methods with mistakes in them: one line says which method, what is wrong and where, on both engines."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rayfl import Federation, Inline, Ray, Result, UserError
from rayfl.data import Synthetic
from rayfl.engine.base import Engine, Plan
from rayfl.engine.set_up import set_up, try_scores
from rayfl.errors import BadCode, Conflict
from rayfl.methods import Cohort, Ditto, FedAvg, Method
from rayfl.nets import LeNet
from rayfl.record.checkpoint import Checkpoints
from rayfl.testing import federate, points
from rayfl.training import Client, Gather, Mean, Reduction, State, Sum
from tests.support.federations import small
from tests.support.refusals import refused

INLINE, RAY = Inline(), Ray(actors=1)
pytestmark = pytest.mark.usefixtures("kept_actors")


def federation(output: Path, method: Method, **changes: Any) -> Federation:
    """Four clients, of which every one trains in every round."""
    data = Synthetic(train=200, test=40)
    return small(output, method=method, data=data, **({"clients": 4, "participation": 1.0} | changes))


class Diverging(FedAvg):
    """FedAvg whose server adds a number to one entry of its velocity in round 2.

    Args:
        added: the number.
        place: of what else there is, ``velocity`` or ``number``.
    """

    def __init__(self, added: Any = 0.0, place: str = "velocity") -> None:
        self.added = added
        self.place = place

    def init_server(self, context: Any) -> State:
        return {"weights": context.initial, "more": {"velocity": context.initial.zeros(), "number": 0.0}}

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        added = self.added if cohort.round == 2 else 0.0
        more = {**server["more"], self.place: server["more"][self.place] + added}
        return {**server, **up, "more": more}


@pytest.mark.parametrize(
    ("engine", "eval_every", "added", "place", "key"),
    [
        (INLINE, 1, float("nan"), "velocity", "['more']['velocity']['conv.0.weight']"),
        (INLINE, 1, float("-inf"), "number", "['more']['number']"),
        (RAY, 0, float("nan"), "velocity", "['more']['velocity']['conv.0.weight']"),
    ],
)
def test_a_server_state_that_is_not_finite_stops_the_run(
    tmp_path: Path, engine: Engine, eval_every: int, added: float, place: str, key: str
) -> None:
    """Records and checkpoint stay those of the rounds before it, and the run can be looked at."""
    settings: dict[str, Any] = {
        "engine": engine,
        "eval_every": eval_every,
        "checkpoint_every": 1,
        "rounds": 5,
    }
    with refused(Conflict, "Diverging.aggregate") as caught:
        federation(tmp_path / "run", Diverging(added, place), **settings).run()
    said = str(caught.value)
    assert "round 2" in said
    assert key in said
    assert "\n" not in said
    federation(tmp_path / "fine", Diverging(), **(settings | {"engine": INLINE, "rounds": 2})).run()
    records = [(tmp_path / run / "metrics.jsonl").read_bytes() for run in ("run", "fine")]
    assert records[0] == records[1]
    costs = (tmp_path / "run" / "engine.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in costs] == [0, 1]
    manifest, damage = Checkpoints(tmp_path / "run" / "checkpoints").newest_intact()
    assert (manifest and manifest.round, damage) == (2, [])
    assert len(Result.load(tmp_path / "run").rounds) == 2


def test_numbers_that_only_add_up_to_infinity_are_finite(tmp_path: Path) -> None:
    """A net of 1e38 adds up to more than float32 holds."""
    federation(tmp_path, Diverging(1e38), rounds=3).run()


class Uploading(FedAvg):
    """FedAvg in which client 3 uploads other keys.

    Args:
        keys: of what client 3 uploads.
    """

    def __init__(self, keys: str = "") -> None:
        self.keys = keys

    def uploads(self, context: Any) -> Mapping[str, Reduction]:
        return {"weights": Mean(), "count": Sum(), "note": Gather()}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        up, state = await super().local_update(client, state, down)
        up |= {"count": 1}
        return ({key: up.get(key, 1) for key in self.keys.split()} if client.id == 3 else up), state

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        return {"weights": up["weights"]}


LACKS = "does not upload 'weights'"
ODD = "uploads 'weight', but"


@pytest.mark.parametrize(
    ("engine", "keys", "says"),
    [(INLINE, "weights count weight", ODD), (INLINE, "note", LACKS), (RAY, "note", LACKS)],
)
def test_an_upload_with_wrong_keys_names_the_client(
    tmp_path: Path, engine: Engine, keys: str, says: str
) -> None:
    """Also where bad updates are dropped: it is the method that is wrong, not the client."""
    with refused(BadCode, "Uploading.local_update") as caught:
        federation(tmp_path, Uploading(keys), engine=engine, on_bad_update="drop").run()
    assert f"client 3 {says}" in str(caught.value)


class Viewing(Ditto):
    """Ditto whose scores have other views than it declares.

    Args:
        names: of the views that it scores.
        late: whether only those who have trained are scored like this.
    """

    views: tuple[str, ...] = ("personal", "global")

    def __init__(self, names: str = "", late: bool = False) -> None:
        super().__init__()
        self.names = names
        self.late = late

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        scores = await super().scores(client, state, down, x)
        if self.late and state["own"] is client.initial:
            return scores
        return dict.fromkeys(self.names.split(), scores["personal"])


@pytest.mark.parametrize(
    ("engine", "names", "returned"),
    [
        (INLINE, "personal global local", "'personal', 'global', 'local'"),
        (INLINE, "", "none"),
        (RAY, "personal", "'personal'"),
    ],
)
def test_views_are_those_that_are_declared(tmp_path: Path, engine: Engine, names: str, returned: str) -> None:
    """What the initial weights show is refused before anything is written or started."""
    with refused(BadCode, "Viewing.scores") as caught:
        federation(tmp_path / "early", Viewing(names), engine=engine).run()
    assert f"views {returned}," in str(caught.value)
    assert not (tmp_path / "early").exists()
    with refused(BadCode, "Viewing.scores") as caught:
        federation(tmp_path / "late", Viewing(names, late=True), engine=engine).run()
    assert f"views {returned}," in str(caught.value)
    assert (tmp_path / "late" / "config.yaml").exists()


def test_the_order_of_views_does_not_matter(tmp_path: Path) -> None:
    federation(tmp_path, Viewing("global personal"), rounds=1).run()
    record = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert set(record["evaluation"]["after_aggregation"]) == {"personal", "global"}


class DoesNotWait(FedAvg):
    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        fitted: Any = client.fit(down["weights"], client.loss)
        return {"weights": fitted.weights}, state


def test_a_fit_that_is_not_awaited_says_so(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match=r"write `await client\.fit\(\.\.\.\)`"):
        federation(tmp_path, DoesNotWait()).run()


class Weights(FedAvg):
    def init_server(self, context: Any) -> Any:
        return context.initial


class SendsNoise(FedAvg):
    def download(self, server: State) -> State:
        return {"weights": server["weights"] + torch.randn(())}


class SendsChanged(FedAvg):
    def download(self, server: State) -> State:
        server["weights"]["head.bias"].add_(1)
        return server


class CountsRequests(FedAvg):
    def __init__(self) -> None:
        """Without an ``__init__`` of its own it could not write to itself at all."""

    def server_metrics(self, context: Any, server: State) -> Any:
        self.asked = True
        return {}


class ScoresClasses(FedAvg):
    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        return {view: s.argmax(1) for view, s in (await super().scores(client, state, down, x)).items()}


class ScoresOne(FedAvg):
    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        return {view: s[:1] for view, s in (await super().scores(client, state, down, x)).items()}


class RecordsAnything(FedAvg):
    def server_metrics(self, context: Any, server: State) -> Any:
        return {"large": 1e300, "whole": 10**400, "some": [1.5, -1e290, float("inf")]}


def test_figures_of_any_size_can_be_read_again(tmp_path: Path) -> None:
    federation(tmp_path / "run", RecordsAnything(), rounds=1).run()
    (record,) = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert record["figures"] == {"large": None, "whole": None, "some": [1.5, None, None]}
    assert record["not_finite"] == ["figures.some.2=inf"]


class ByWord(FedAvg):
    def uploads(self, context: Any) -> Any:
        return {"weights": Mean(), "further": "mean"}


class Drawing(FedAvg):
    def prepare(self, context: Any) -> Any:
        """Return another factor in every process."""
        return {"factor": [np.random.default_rng().random(2)]}


class Zeroing(FedAvg):
    def prepare(self, context: Any) -> None:
        """Begin with zeros."""
        for tensor in context.initial.values():
            tensor.mul_(0)


class Counting(FedAvg):
    seen: ClassVar[list[int]] = []

    def prepare(self, context: Any) -> None:
        """Remember the calls."""
        self.seen.append(1)


class ListOfModules(FedAvg):
    def modules(self, net: Any) -> Any:
        """Name no module."""
        return [nn.Linear(2, 2)]


class Same(FedAvg):
    def prepare(self, context: Any) -> Any:
        """Return what is equal, and never the same object."""
        draws = torch.rand(3, generator=context.generator("prepare", 0))
        return {"draws": draws, "names": ["a", "b"], "bound": float("nan"), "net": object(), "cut": {1: None}}


def test_what_is_prepared_may_be_any_values(tmp_path: Path) -> None:
    federation(tmp_path / "run", Same()).run()


@pytest.mark.parametrize(
    ("method", "call", "word"),
    [
        (Weights, "init_server", "a state is a dict"),
        (SendsNoise, "download", "PyTorch's global generator"),
        (SendsChanged, "download", "server['weights']['head.bias']"),
        (CountsRequests, "server_metrics", "self.asked"),
        (ScoresClasses, "scores", "returns [2] for 'personal'"),
        (ScoresOne, "scores", "returns [1, 10] for 'personal'"),
        (ByWord, "uploads", "'mean'"),
        (Drawing, "prepare", "other values"),
        (Zeroing, "prepare", "initial['conv.0.weight']"),
        (Counting, "prepare", "self.seen"),
        (ListOfModules, "modules", "name -> what builds"),
    ],
)
def test_what_a_trial_shows_is_refused_before_the_start(
    tmp_path: Path, method: Any, call: str, word: str
) -> None:
    with refused(BadCode, f"{method.__name__}.{call}") as caught:
        federation(tmp_path / "run", method()).run()
    assert word in str(caught.value)
    assert not (tmp_path / "run").exists()


def updating(update: Any) -> Method:
    """FedAvg whose clients do something else."""
    return type("Updating", (FedAvg,), {"local_update": update})()


def returning(up: Any = None, state: Any = None) -> Method:
    """FedAvg that returns something else."""

    async def update(self: Any, client: Any, old: Any, down: Any) -> Any:
        return up or {"weights": down["weights"]}, state or old

    return updating(update)


UPDATE = "Updating.local_update"
MISTAKES: list[tuple[str, Method, type[UserError], str, str]] = [
    ("a list", returning(state={"seen": {"at": [1]}}), BadCode, UPDATE, "state/seen/at is a list"),
    ("a key", returning(state={(1, 2): 3}), BadCode, UPDATE, "key (1, 2)"),
    ("an array", returning({"weights": np.ones(3)}), BadCode, UPDATE, "uploads array"),
    (
        "a dict",
        returning({"weights": {"w": torch.ones(1)}}),
        BadCode,
        "Updating.aggregate",
        "'weights/head.weight'",
    ),
]


@pytest.mark.parametrize("execution", ["loop", "stacked"])
@pytest.mark.parametrize(
    ("method", "kind", "place", "word"), [m[1:] for m in MISTAKES], ids=[m[0] for m in MISTAKES]
)
def test_a_mistake_in_an_update_is_told_in_one_line(
    method: Method, kind: type[UserError], place: str, word: str, execution: Any
) -> None:
    with refused(kind, place) as caught:
        federate(method, points([((1, 0), 0)], [((0, 1), 1)]), cohorts=1, execution=execution).scores(
            0, torch.ones(1, 1, 1, 2)
        )
    assert word in str(caught.value)


class GathersLists(FedAvg):
    def uploads(self, context: Any) -> Mapping[str, Reduction]:
        return {"weights": Mean(), "seen": Gather()}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        return {"weights": down["weights"], "seen": [client.id]}, state


def test_what_is_gathered_can_travel() -> None:
    """Between processes as within one."""
    with refused(BadCode, "GathersLists.local_update"):
        federate(GathersLists(), points([((1, 0), 0)]), cohorts=1)


class CannotScoreFew(FedAvg):
    """FedAvg with scores that fail on few images."""

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        if len(x) <= 2:
            raise RuntimeError("no GPU here")
        return await super().scores(client, state, down, x)


class Drawing(CannotScoreFew):
    """As above, with a draw from the global generator."""

    def init_server(self, context: Any) -> State:
        return {**super().init_server(context), "drawn": torch.rand(())}


def test_a_trial_that_cannot_score_leaves_it_to_the_run(tmp_path: Path) -> None:
    """A trial that cannot score leaves it to the run and no trace."""
    made = federation(tmp_path, CannotScoreFew(), rounds=1)
    data, plan = made.federated_data(), Plan(Drawing(), LeNet(), made.training, 0, Inline(device="cpu"))
    torch.manual_seed(0)
    nets, context = set_up(plan, data)
    try_scores(plan.method, context, nets[0], plan, data)
    drawn = torch.rand(())
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(()))
    made.run()
