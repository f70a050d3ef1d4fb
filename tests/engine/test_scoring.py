"""Clients scored together, and evaluations of some of the clients."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch.nn.functional as F
from torch import Tensor

from rayfl import Inline, evaluation, load_models, resumed
from rayfl.data import Dirichlet, FederatedData, Synthetic
from rayfl.errors import Conflict
from rayfl.evaluation.measures import measures
from rayfl.methods import APFL, Ditto, FedAvg, FedBABU, FedPer, FedRep, Method, PerFedAvg
from rayfl.sampling import Trace
from rayfl.testing.checks import TINY
from rayfl.training import Client, State, Training
from tests.support.datasets import of_classes
from tests.support.federations import Poisoned, bytes_of_run, records_of, same_bytes, small
from tests.support.refusals import refused
from tests.support.workers import pretend

DATA = Synthetic(train=300, test=90, shape=(1, 16, 16), partition=Dirichlet(alpha=1.0), val_fraction=0.2)
FEW: dict[str, Any] = {"data": DATA, "rounds": 2, "eval_clients": 5.0, "checkpoint_every": 1, "net": TINY}
TRAINING = Training(lr=0.05, batch_size=20, precision="float64", bn_single="eval")


class OtherShare(FedPer):
    """Keeps something else than the head."""

    def shared(self, net: Any, name: str, module: Any) -> bool:
        """Share the head."""
        return not super().shared(net, name, module)


@pytest.mark.parametrize(
    "method",
    [FedPer(), FedPer(personal="fc_stack"), FedRep(), Ditto(), OtherShare()],
    ids=lambda m: str(m)[:40],
)
def test_clients_are_scored_as_each_is_alone(tmp_path: Path, method: Method) -> None:
    settings: dict[str, Any] = {"method": method, "data": DATA, "net": TINY, "rounds": 1, "metrics": ["f1"]}
    small(tmp_path / "run", training=TRAINING, checkpoint_every=1, **settings).run()
    recorded = records_of(tmp_path / "run")[-1]["evaluation"]["after_aggregation"]
    models, f1 = load_models(tmp_path / "run"), measures(["f1"], of_classes(10))[0]
    for one in models:
        for split in ("val", "test"):
            if len(models.data.clients[one.client].split(split)):
                x, y = models.batch(one.client, split)
                for view, scores in models.scores(one.client, x).items():
                    found = {name: each[one.client] for name, each in recorded[view][split].items()}
                    assert found["score"] == int((scores.argmax(1) == y).sum())
                    assert found["loss"] == pytest.approx(float(F.cross_entropy(scores, y)), rel=1e-12)
                    assert found["f1"] == pytest.approx(f1.value(scores, y), rel=1e-12)


class AsAlways(FedAvg):
    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score client by client, as methods with views of their own are scored."""
        return await super().scores(client, state, down, x)


@pytest.mark.parametrize("changes", [{}, {"training": TRAINING}, {"eval_clients": 5.0}])
def test_clients_of_one_model_are_scored_by_one_coroutine_to_the_same_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    usual, sizes = Method.scores, list[int]()

    def counted(self: Any, client: Client, state: State, down: State, x: Tensor) -> Any:
        sizes.append(len(x))
        return usual(self, client, state, down, x)

    settings: dict[str, Any] = {"data": DATA, "net": TINY, "rounds": 2, "clients": 9, **changes}
    monkeypatch.setattr(Method, "scores", counted)
    small(tmp_path / "one", method=FedAvg(), **settings).run()
    assert len(sizes) == 4, "validation and test samples, after two rounds"
    monkeypatch.undo()
    small(tmp_path / "each", method=AsAlways(), **settings).run()
    one, each = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("one", "each"))
    assert one == each


class FirstValidates(Synthetic):
    """The first client alone has validation samples."""

    def federate(self, clients: int | None, seed: int) -> FederatedData:
        """Take those of the others away."""
        data = super().federate(clients, seed)
        first, *others = data.clients
        return replace(data, clients=(first, *(replace(each, val=each.val[:0]) for each in others)))


def test_a_worker_whose_clients_have_nothing_of_a_split(tmp_path: Path) -> None:
    data = FirstValidates(train=700, test=600, shape=(1, 16, 16), val_fraction=0.2)
    settings: dict[str, Any] = {"method": FedPer(), "data": data, "clients": 2, "net": TINY, "rounds": 1}
    folder, _ = same_bytes(tmp_path, Inline(), pretend(count=2), **settings)
    views = records_of(folder)[-1]["evaluation"]["after_aggregation"]["personal"]
    assert [None in views[split]["score"] for split in ("val", "test")] == [True, False]


def test_the_same_bytes_on_several_workers_and_after_resuming(tmp_path: Path) -> None:
    """Of clients drawn anew, with state on several workers."""
    engines = Inline(), pretend(count=2)
    same_bytes(tmp_path, *engines, resumed_after=1, **FEW, method=FedPer(), eval_draw="anew")


def test_some_clients_are_scored(tmp_path: Path) -> None:
    """Records name them and have nothing of the others; figures count the others as left out."""
    result = small(tmp_path / "once", **FEW, loggers=["tensorboard"]).run()
    scored = [
        line["evaluation"]["after_aggregation"]["personal"]["test"]["clients"]
        for line in records_of(tmp_path / "once")
    ]
    assert scored[0] == scored[1]
    assert len(scored[0]) == 5
    small(tmp_path / "all", **FEW | {"eval_clients": None}).run()
    for some, full in zip(records_of(tmp_path / "once"), records_of(tmp_path / "all"), strict=True):
        for split in ("val", "test"):
            ours, theirs = (x["evaluation"]["after_aggregation"]["personal"][split] for x in (some, full))
            assert ours["score"] == [theirs["score"][i] for i in ours["clients"]]
            assert ours["loss"] == [theirs["loss"][i] for i in ours["clients"]]
    tested = {i for i in scored[0] if result.history.population.samples["test"][i]}
    assert result.summary["headline"]["clients"] == len(tested)
    assert set(result.clients[result.clients.part == "test"].client) == tested
    share = small(tmp_path / "anew", **FEW | {"eval_clients": 0.5, "eval_draw": "anew"}).run()
    drawn = [
        line["evaluation"]["after_aggregation"]["personal"]["test"]["clients"]
        for line in records_of(share.folder)
    ]
    assert {len(ids) for ids in drawn} <= {5, 6}
    assert drawn[0] != drawn[1]


def test_a_protocol_that_scores_as_clients_train_needs_them_all(tmp_path: Path) -> None:
    with refused(Conflict, "eval_clients"):
        small(tmp_path / "run", **FEW, protocol=evaluation.FediOS()).run()


WAITING = {"clients": [4, 5, 6, 7], "unlisted": [6, 7]}


@pytest.mark.parametrize(
    ("method", "view", "how"),
    [
        (APFL(), "global", "scored by the global view"),
        (FedPer(), None, "scored as new clients do"),
    ],
)
def test_who_has_never_trained_counts_by_what_it_would_use(
    tmp_path: Path, capsys: Any, method: Method, view: str | None, how: str
) -> None:
    """Clients 4 and 5 are listed for later rounds, 6 and 7 never: not by a model that nobody has trained."""
    listed = [{"client": i, "from": 0} for i in range(4)] + [{"client": i, "from": 9} for i in (4, 5)]
    (tmp_path / "trace.json").write_text(json.dumps(listed))
    settings: dict[str, Any] = {"data": DATA, "clients": 8, "rounds": 2, "checkpoint_every": 1, "net": TINY}
    settings |= {"method": method, "sampling": Trace(path=str(tmp_path / "trace.json"))}
    result = small(tmp_path / "run", **settings, quiet=False).run()
    last = records_of(tmp_path / "run")[-1]
    assert last["untrained"] == {**WAITING, "view": view}
    told = capsys.readouterr().out.replace("\n", " ")
    assert f"4 of 8 clients have never trained (not in the trace: 2), {how}." in told
    assert result.summary["headline"]["untrained"] == {"clients": 4, "unlisted": 2, "view": view}
    test = {name: each["test"] for name, each in last["evaluation"]["after_aggregation"].items()}
    if view:
        assert all(test["personal"][key][4:] == test[view][key][4:] for key in ("score", "loss"))
    models = load_models(tmp_path / "run")
    for one in models:
        x, y = models.batch(one.client)
        right = models.scores(one.client, x)["personal"].argmax(1) == y
        assert int(right.sum()) == test["personal"]["score"][one.client]
    own = small(tmp_path / "own", **settings, protocol=evaluation.Default(untrained="own")).run()
    ours, theirs = (r.history.scores["after_aggregation", "personal", "test"].loss[-1] for r in (result, own))
    assert (ours == theirs).tolist() == [True] * 4 + [False] * 4
    small(tmp_path / "half", **settings | {"rounds": 1}).run()
    resumed(tmp_path / "half", {"rounds": 2}).run()
    assert bytes_of_run(tmp_path / "half") == bytes_of_run(tmp_path / "run")


@pytest.mark.parametrize("method", [FedBABU(tune_epochs=1), PerFedAvg(alpha=0.5)])
def test_methods_that_keep_nothing_personalise_clients_that_have_never_trained(
    tmp_path: Path, method: Method
) -> None:
    (tmp_path / "trace.json").write_text(json.dumps([{"client": i, "from": 0} for i in range(4)]))
    settings: dict[str, Any] = {"data": DATA, "clients": 6, "rounds": 1, "participation": 1.0}
    settings |= {"method": method, "sampling": Trace(path=str(tmp_path / "trace.json"))}
    small(tmp_path / "run", **settings).run()
    (line,) = records_of(tmp_path / "run")
    assert line["untrained"] == {"clients": [4, 5], "unlisted": [4, 5], "view": None}
    views = line["evaluation"]["after_aggregation"]
    ours, common = (views[view]["test"]["loss"] for view in ("personal", "global"))
    assert all(a != b for a, b in zip(ours, common, strict=True))


def test_whose_update_was_dropped_has_not_trained(tmp_path: Path) -> None:
    small(tmp_path / "run", method=Poisoned(at=0), participation=1.0, on_bad_update="drop", rounds=2).run()
    first, second = records_of(tmp_path / "run")
    assert first["untrained"] == {"clients": [2], "unlisted": [], "view": "global"}
    assert "untrained" not in second
