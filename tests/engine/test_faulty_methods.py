"""Methods with mistakes in them: one line says which method, what is wrong and where, on both engines."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from rayfl import Federation, Inline, Ray, Result, UserError
from rayfl.data import Synthetic
from rayfl.engine.base import Engine
from rayfl.engine.plan import Plan, set_up, try_scores
from rayfl.methods import Cohort, Ditto, FedAvg, Method
from rayfl.nets import LeNet
from rayfl.record.checkpoint import Checkpoints
from rayfl.training import Client, Gather, Mean, Reduction, State, Sum
from tests.support.federations import small

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

    def __init__(self, added: float = 0.0, place: str = "velocity") -> None:
        self.added = added
        self.place = place

    def init_server(self, initial: Any) -> State:
        return {"weights": initial, "more": {"velocity": initial.zeros(), "number": 0.0}}

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
    with pytest.raises(UserError) as error:
        federation(tmp_path / "run", Diverging(added, place), **settings).run()
    said = str(error.value)
    assert said.startswith(
        f"round 2: the state that Diverging.aggregate returns is not finite (NaN or infinity): {key}."
    )
    assert "\n" not in said
    federation(tmp_path / "fine", Diverging(), **(settings | {"engine": INLINE, "rounds": 2})).run()
    records = [(tmp_path / run / "metrics.jsonl").read_text().splitlines()[:2] for run in ("run", "fine")]
    assert records[0] == records[1]
    manifest, damage = Checkpoints(tmp_path / "run" / "checkpoints").newest()
    assert (manifest and manifest.round, damage) == (2, [])
    assert len(Result.load(tmp_path / "run").rounds) >= 2


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

    @property
    def uploads(self) -> Mapping[str, Reduction]:
        return {"weights": Mean(), "count": Sum(), "note": Gather()}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        up, state = await super().local_update(client, state, down)
        up |= {"count": 1}
        return ({key: up.get(key, 1) for key in self.keys.split()} if client.id == 3 else up), state

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        return {"weights": up["weights"]}


LACKS = "does not upload 'weights', which `uploads` of the method averages"
ODD = "uploads 'weight', but `uploads` of the method declares 'weights', 'count', 'note'"


@pytest.mark.parametrize(
    ("engine", "keys", "says"),
    [(INLINE, "weights count weight", ODD), (INLINE, "note", LACKS), (RAY, "note", LACKS)],
)
def test_an_upload_with_wrong_keys_names_the_client(
    tmp_path: Path, engine: Engine, keys: str, says: str
) -> None:
    """Also where bad updates are dropped: it is the method that is wrong, not the client."""
    with pytest.raises(UserError) as error:
        federation(tmp_path, Uploading(keys), engine=engine, on_bad_update="drop").run()
    assert str(error.value) == f"Uploading: in round 0 client 3 {says}"


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

    def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        scores = super().scores(client, state, down, x)
        if self.late and state["own"] is client.initial:
            return scores
        return dict.fromkeys(self.names.split(), scores["personal"])


SAYS = (
    "Viewing.scores returns the views {}, but `views` of the method has 'personal', 'global': both must name "
    "the same"
)


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
    with pytest.raises(UserError) as error:
        federation(tmp_path / "early", Viewing(names), engine=engine).run()
    assert str(error.value) == SAYS.format(returned)
    assert not (tmp_path / "early").exists()
    with pytest.raises(UserError) as error:
        federation(tmp_path / "late", Viewing(names, late=True), engine=engine).run()
    assert str(error.value) == SAYS.format(returned)
    assert (tmp_path / "late" / "config.yaml").exists()


def test_the_order_of_views_does_not_matter(tmp_path: Path) -> None:
    federation(tmp_path, Viewing("global personal"), rounds=1).run()
    record = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert set(record["evaluation"]["after_aggregation"]) == {"personal", "global"}


class Weights(FedAvg):
    def init_server(self, initial: Any) -> Any:
        return initial


class Nothing(FedAvg):
    def init_client(self, client: Client) -> Any:
        pass


class SendsNothing(FedAvg):
    def download(self, server: State) -> Any:
        pass


class SendsTwice(FedAvg):
    def download_for(self, server: State, client: int) -> State:
        return {"weights": server["weights"]}


class SendsNoise(FedAvg):
    def download(self, server: State) -> State:
        return {"weights": server["weights"] + torch.randn(())}


class SendsChanged(FedAvg):
    def download(self, server: State) -> State:
        server["weights"]["head.bias"].add_(1)
        return server


class CountsRequests(FedAvg):
    def server_metrics(self, server: State) -> Any:
        self.asked = True
        return {}


class ScoresATensor(FedAvg):
    def scores(self, client: Client, state: State, down: State, x: Tensor) -> Any:
        return client.net.eval(down["weights"], x)


class ScoresClasses(FedAvg):
    def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        return {view: s.argmax(1) for view, s in super().scores(client, state, down, x).items()}


class NoProperty(FedAvg):
    def uploads(self) -> Any:  # type: ignore[override]
        return {"weights": Mean()}


class ByWord(FedAvg):
    uploads: ClassVar[Any] = {"weights": "mean"}


@pytest.mark.parametrize(
    ("method", "says"),
    [
        (Weights, "Weights.init_server returns Params.*: it must return a dict"),
        (Nothing, "Nothing.init_client returns None: it must return a dict"),
        (SendsNothing, "SendsNothing.download returns None"),
        (SendsTwice, "SendsTwice.download_for returns 'weights', which download has already"),
        (SendsNoise, "SendsNoise.download has drawn from PyTorch's global generator"),
        (SendsChanged, r"SendsChanged.download has changed in place .*server\['weights'\]\['head.bias'\]"),
        (CountsRequests, "has changed self.asked"),
        (ScoresATensor, "ScoresATensor.scores returns tensor"),
        (ScoresClasses, r"ScoresClasses.scores returns \[1\] for 'personal' of one input"),
        (NoProperty, "NoProperty.uploads is .*must be a property"),
        (ByWord, "ByWord.uploads is .*'mean'.*must be a property"),
    ],
)
def test_what_a_trial_shows_is_refused_before_the_start(tmp_path: Path, method: Any, says: str) -> None:
    with pytest.raises(UserError, match=says):
        federation(tmp_path / "run", method()).run()
    assert not (tmp_path / "run").exists()


class CannotScoreOne(FedAvg):
    """FedAvg with scores that fail on a single image."""

    def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        if len(x) == 1:
            raise RuntimeError("no GPU here")
        return super().scores(client, state, down, x)


class Drawing(CannotScoreOne):
    """As above, with a draw from the global generator."""

    def init_server(self, initial: Any) -> State:
        return {**super().init_server(initial), "drawn": torch.rand(())}


def test_a_trial_that_cannot_score_leaves_it_to_the_run(tmp_path: Path) -> None:
    """A trial that cannot score leaves it to the run and no trace."""
    made = federation(tmp_path, CannotScoreOne(), rounds=1)
    data, plan = made.federated_data(), Plan(Drawing(), LeNet(), made.training, 0)
    torch.manual_seed(0)
    try_scores(plan.method, set_up(plan.method, plan, data)[0], plan, data)
    drawn = torch.rand(())
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(()))
    made.run()
