"""Samples of many clients scored in one call, and evaluations of some of the clients."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from rayfl import Inline, Ray, Result, evaluation, load_models, resumed
from rayfl.data import Dirichlet, FederatedData, Synthetic
from rayfl.errors import BadCode, Conflict, Damaged
from rayfl.methods import APFL, Ditto, FedAvg, FedBN, FedPer, FedRep, Method, TopK
from rayfl.nets import CNNB
from rayfl.running.settings import MANY_CLIENTS
from rayfl.sampling import Trace
from rayfl.training import Client, State, Training
from tests.support.federations import Poisoned, bytes_of_run, small
from tests.support.refusals import refused
from tests.support.workers import pretend

DATA = Synthetic(train=300, test=90, shape=(1, 16, 16), partition=Dirichlet(alpha=1.0), val_fraction=0.2)
FEW: dict[str, Any] = {"data": DATA, "rounds": 2, "eval_clients": 5.0, "checkpoint_every": 1}
TRAINING = Training(lr=0.05, batch_size=20, precision="float64", bn_single="eval")


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    "method", [FedAvg(), FedPer(), FedPer(personal="fc_stack"), TopK(of=FedRep())], ids=lambda m: str(m)[:40]
)
def test_together_scores_what_each_scores(tmp_path: Path, method: Method) -> None:
    settings: dict[str, Any] = {"method": method, "data": DATA, "net": CNNB(), "rounds": 2, "metrics": ["f1"]}
    found = []
    for scoring in ("each", "together"):
        small(tmp_path / scoring, scoring=scoring, training=TRAINING, **settings).run()
        found.append(lines(tmp_path / scoring))
    for one, other in zip(*found, strict=True):
        ours, theirs = one.pop("evaluation"), other.pop("evaluation")
        assert one == other
        for view, splits in ours["after_aggregation"].items():
            for split, score in splits.items():
                again = theirs["after_aggregation"][view][split]
                assert again["correct"] == score["correct"]
                for name in ("loss", "f1"):
                    assert again[name] == pytest.approx(score[name], rel=1e-9)


class OwnScores(FedAvg):
    """Has scores of its own, and says nothing of what they have in common."""

    def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score the other way round."""
        return {view: -score for view, score in super().scores(client, state, down, x).items()}


class OtherShare(FedPer):
    """Keeps something else than the head."""

    def shared(self, name: str, module: Any) -> bool:
        """Share the head."""
        return not super().shared(name, module)


def test_who_has_scores_in_common() -> None:
    found = {FedAvg(): "all", TopK(of=FedAvg()): "all", FedPer(): "part", TopK(of=FedRep()): "part"}
    nothing = [OwnScores(), OtherShare(), FedBN(), Ditto(), TopK(of=OwnScores())]
    for method, much in {**found, **dict.fromkeys(nothing, "nothing")}.items():
        assert method.in_common == much


class OtherViews(FedPer):
    def own_scores(self, client: Client, state: State, down: State, common: Any) -> dict[str, Tensor]:
        """Score under a name that the method does not declare."""
        return {"mine": super().own_scores(client, state, down, common)["personal"]}


def test_views_of_scores_in_common_are_those_that_are_declared(tmp_path: Path) -> None:
    with refused(BadCode, "OtherViews.scores"):
        small(tmp_path / "run", method=OtherViews(), scoring="together").run()


class FirstValidates(Synthetic):
    """The first client alone has validation samples."""

    def federate(self, clients: int | None, seed: int) -> FederatedData:
        """Take those of the others away."""
        data = super().federate(clients, seed)
        first, *others = data.clients
        return replace(data, clients=(first, *(replace(each, val=each.val[:0]) for each in others)))


def test_a_worker_whose_clients_have_nothing_of_a_split(tmp_path: Path) -> None:
    data = FirstValidates(train=700, test=600, shape=(1, 16, 16), val_fraction=0.2)
    settings: dict[str, Any] = {"method": FedPer(), "data": data, "clients": 2, "scoring": "together"}
    for name, engine in (("one", Inline()), ("two", pretend(count=2))):
        small(tmp_path / name, engine=engine, **settings | {"rounds": 2}).run()
    assert lines(tmp_path / "one") == lines(tmp_path / "two")
    views = lines(tmp_path / "two")[-1]["evaluation"]["after_aggregation"]["personal"]
    assert [None in views[split]["correct"] for split in ("val", "test")] == [True, False]


def test_auto_is_together_for_many_clients(tmp_path: Path) -> None:
    for clients, together in ((MANY_CLIENTS, False), (MANY_CLIENTS + 1, True)):
        assert small(tmp_path, clients=clients).plan().together is together
        assert small(tmp_path, clients=clients, scoring="each").plan().together is False


@pytest.mark.usefixtures("kept_actors")
def test_the_same_bytes_on_any_actors(tmp_path: Path) -> None:
    """Together, of clients drawn anew, with state on several actors, and after resuming."""
    settings = FEW | {"method": FedPer(), "scoring": "together", "eval_draw": "anew", "rounds": 3}
    for name, engine in (("inline", Inline()), ("two", Ray(actors=2))):
        small(tmp_path / name, engine=engine, **settings).run()
    small(tmp_path / "half", **settings | {"rounds": 2}).run()
    resumed(tmp_path / "half", {"rounds": 3}).run()
    whole = bytes_of_run(tmp_path / "inline")
    assert all(bytes_of_run(tmp_path / name) == whole for name in ("two", "half"))


def test_some_clients_are_scored(tmp_path: Path) -> None:
    """Records name them and have nothing of the others; figures count the others as left out."""
    result = small(tmp_path / "once", **FEW, loggers=["tensorboard"]).run()
    scored = [
        line["evaluation"]["after_aggregation"]["personal"]["test"]["clients"]
        for line in lines(tmp_path / "once")
    ]
    assert scored[0] == scored[1]
    assert len(scored[0]) == 5
    small(tmp_path / "all", **FEW | {"eval_clients": None}).run()
    for some, full in zip(lines(tmp_path / "once"), lines(tmp_path / "all"), strict=True):
        for split in ("val", "test"):
            ours, theirs = (x["evaluation"]["after_aggregation"]["personal"][split] for x in (some, full))
            assert ours["correct"] == [theirs["correct"][i] for i in ours["clients"]]
            assert ours["loss"] == [theirs["loss"][i] for i in ours["clients"]]
    tested = {i for i in scored[0] if result.history.population.samples["test"][i]}
    assert result.summary["headline"]["clients"] == len(tested)
    assert set(result.clients[result.clients.part == "test"].client) == tested
    share = small(tmp_path / "anew", **FEW | {"eval_clients": 0.5, "eval_draw": "anew", "rounds": 3}).run()
    drawn = [
        line["evaluation"]["after_aggregation"]["personal"]["test"]["clients"] for line in lines(share.folder)
    ]
    assert {len(ids) for ids in drawn} <= {5, 6}
    assert drawn[0] != drawn[1]


def test_a_protocol_that_scores_as_clients_train_needs_them_all(tmp_path: Path) -> None:
    with refused(Conflict, "eval_clients"):
        small(tmp_path / "run", **FEW, protocol=evaluation.FediOS()).run()


def test_a_damaged_record_of_some_clients_is_refused(tmp_path: Path) -> None:
    small(tmp_path / "run", **FEW | {"rounds": 1}).run()
    path = tmp_path / "run" / "metrics.jsonl"
    (line,) = lines(tmp_path / "run")
    for wrong in ([0, 1, 2, 3, 99], [1, 0, 2, 3, 4], [0]):
        line["evaluation"]["after_aggregation"]["personal"]["test"]["clients"] = wrong
        path.write_text(json.dumps(line) + "\n")
        with refused(Damaged, "metrics.jsonl"):
            Result.load(tmp_path / "run")


WAITING = {"clients": [4, 5, 6, 7], "unlisted": [6, 7]}


@pytest.mark.parametrize(
    ("method", "scoring", "view", "how"),
    [
        (TopK(of=APFL(), share=0.5), "each", "global", "scored by the global view"),
        (FedPer(), "each", None, "scored as new clients do"),
        (FedPer(), "together", None, "scored as new clients do"),
    ],
)
def test_who_has_never_trained_counts_by_what_it_would_use(
    tmp_path: Path, capsys: Any, method: Method, scoring: Any, view: str | None, how: str
) -> None:
    """Clients 4 and 5 are listed for later rounds, 6 and 7 never: not by a model that nobody has trained."""
    listed = [{"client": i, "from": 0} for i in range(4)] + [{"client": i, "from": 9} for i in (4, 5)]
    (tmp_path / "trace.json").write_text(json.dumps(listed))
    settings: dict[str, Any] = {"data": DATA, "clients": 8, "rounds": 2, "checkpoint_every": 1}
    settings |= {"method": method, "scoring": scoring, "sampling": Trace(path=str(tmp_path / "trace.json"))}
    result = small(tmp_path / "run", **settings, quiet=False).run()
    last = lines(tmp_path / "run")[-1]
    assert last["untrained"] == {**WAITING, "view": view}
    told = capsys.readouterr().out.replace("\n", " ")
    assert f"4 of 8 clients have never trained (not in the trace: 2), {how}." in told
    assert result.summary["headline"]["untrained"] == {"clients": 4, "unlisted": 2, "view": view}
    test = {name: each["test"] for name, each in last["evaluation"]["after_aggregation"].items()}
    if view:
        assert all(test["personal"][key][4:] == test[view][key][4:] for key in ("correct", "loss"))
    models = load_models(tmp_path / "run")
    for one in models:
        x, y = models.batch(one.client)
        right = models.scores(one.client, x)["personal"].argmax(1) == y
        assert int(right.sum()) == test["personal"]["correct"][one.client]
    own = small(tmp_path / "own", **settings, protocol=evaluation.Default(untrained="own")).run()
    ours, theirs = (r.history.scores["after_aggregation", "personal", "test"].loss[-1] for r in (result, own))
    assert (ours == theirs).tolist() == [True] * 4 + [False] * 4
    small(tmp_path / "half", **settings | {"rounds": 1}).run()
    resumed(tmp_path / "half", {"rounds": 2}).run()
    assert bytes_of_run(tmp_path / "half") == bytes_of_run(tmp_path / "run")


def test_whose_update_was_dropped_has_not_trained(tmp_path: Path) -> None:
    small(tmp_path / "run", method=Poisoned(at=0), participation=1.0, on_bad_update="drop", rounds=2).run()
    first, second = lines(tmp_path / "run")
    assert first["untrained"] == {"clients": [2], "unlisted": [], "view": "global"}
    assert "untrained" not in second
