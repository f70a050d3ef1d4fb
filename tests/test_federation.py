"""Federations from Python: cohorts, what is recorded, and updates that cannot be used."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from rayfl import Federation, Inline, Ray, Training, UserError, evaluation
from rayfl.data import IID, FederatedData, Synthetic
from rayfl.engine import BadUpdate
from rayfl.errors import BadCode, BadValue, InUse, Unknown
from rayfl.methods import FedAvg, Local
from rayfl.nets import CNNB
from rayfl.randomness import generator
from rayfl.report.summary import headline_source
from rayfl.sampling import Bernoulli
from rayfl.system.files import lock_folder
from rayfl.training import Client, State
from tests.support.federations import Poisoned, bytes_of_run, records_of, small
from tests.support.refusals import refused


def test_cohorts_depend_on_seed_and_round_only(tmp_path: Path) -> None:
    federation = small(tmp_path, seed=3, clients=10, participation=0.29)
    for r in range(9):
        order = torch.randperm(10, generator=generator(3, "cohort", r))
        assert federation.cohort(r) == sorted(order[:2].tolist())
    for rate, clients, size in ((0.29, 100, 29), (0.05, 100, 5), (0.001, 100, 1), (1, 7, 7)):
        assert len(small(tmp_path, participation=rate, clients=clients).cohort(0)) == size


def test_how_many_clients_are_scored(tmp_path: Path) -> None:
    """A share below 1, or a number."""
    wanted = {None: 100, 0.001: 1, 0.29: 29, 1.0: 1, 7.0: 7}
    found = {share: small(tmp_path, eval_clients=share).scored_count(100) for share in wanted}
    assert found == wanted


def test_a_run_inside_a_running_event_loop(tmp_path: Path) -> None:
    """As in a notebook."""

    async def cell() -> bytes:
        small(tmp_path / "cell", rounds=1).run()
        return (tmp_path / "cell" / "metrics.jsonl").read_bytes()

    small(tmp_path / "plain", rounds=1).run()
    assert asyncio.run(cell()) == (tmp_path / "plain" / "metrics.jsonl").read_bytes()


def test_result_has_tidy_tables(tmp_path: Path) -> None:
    result = small(tmp_path / "run", rounds=2).run()
    assert result.complete
    assert set(result.clients["part"]) == {"val", "test"}
    assert set(result.clients["view"]) == {"personal", "global"}
    timed = json.loads((tmp_path / "run" / "engine.jsonl").read_text().splitlines()[0])
    assert 0 < timed["train_seconds"] < timed["seconds"]
    assert (len(result.clients.query("round == 1 and part == 'test'")), len(result.rounds)) == (2 * 12, 2)


def test_evaluation_can_be_rarer_or_off(tmp_path: Path) -> None:
    small(tmp_path / "rare", eval_every=3).run()
    evaluated = ["evaluation" in record for record in records_of(tmp_path / "rare")]
    assert evaluated == [False, False, True, True]
    result = small(tmp_path / "off", eval_every=0, checkpoint_every=0, rounds=1).run()
    assert result.clients.empty
    assert not (tmp_path / "off" / "checkpoints").exists()


def test_rare_evaluations_have_all_scores_after_training(tmp_path: Path) -> None:
    """A client counts by the model of its latest training, whether or not that round was evaluated."""
    settings: dict[str, Any] = {"protocol": evaluation.FediOS(choose="last"), "participation": 0.3}
    found = []
    for every in (1, 2):
        small(tmp_path / str(every), **settings, eval_every=every).run()
        records = records_of(tmp_path / str(every))
        found.append([records[k]["evaluation"] for k in (1, 3)])
    assert found[0] == found[1]
    assert set(found[0][0]["after_training"]) == {"personal"}  # a client's copy is not the global model


def test_both_points_are_recorded_if_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The headline stays; the end says how many scores after training are of an initial or an older model."""
    settings: dict[str, Any] = {"participation": 1 / 6, "rounds": 3}
    plain = small(tmp_path / "plain", **settings).run()
    both = small(tmp_path / "both", **settings, eval_points="both", quiet=False).run()
    told = capsys.readouterr().out
    asked = small(tmp_path / "asked", **settings, protocol=evaluation.Default(point="after_training")).run()
    assert (both.folder / "metrics.jsonl").read_bytes() == (asked.folder / "metrics.jsonl").read_bytes()
    assert both.summary["headline"] == plain.summary["headline"]
    assert {point for point, _ in plain.history.views()} == {"after_aggregation"}
    tested = both.history.population.samples["test"] > 0
    initial = int((tested & (both.history.first > 2)).sum())
    older = int(tested.sum()) - initial - int(tested[records_of(both.folder)[-1]["cohort"]].sum())
    of = f"of {tested.sum()} clients {initial} by their initial model, {older} by a model of an older round"
    assert f"After training, last round: {of}." in told
    assert of in headline_source(asked.summary["headline"])


class Forgets(FedAvg):
    """All that was learned is lost in round 1."""

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train, then forget."""
        up, state = await super().local_update(client, state, down)
        return (up if client.round == 0 else {"weights": up["weights"] * 0.0}), state


@pytest.mark.parametrize(
    ("every", "rounds", "says"),
    [(1, 4, "those after rounds 3 and 4; "), (1, 2, ""), (0, 1, "none; ")],
)
def test_a_headline_whose_models_are_gone_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], every: int, rounds: int, says: str
) -> None:
    protocol, training = evaluation.Default(choose="best_val"), Training(lr=0.2, batch_size=20)
    settings: dict[str, Any] = {
        "method": Forgets(),
        "protocol": protocol,
        "training": training,
        "quiet": False,
    }
    run = small(tmp_path / "run", **settings, checkpoint_every=every, rounds=rounds)
    assert run.run().summary["headline"]["rounds"] == [0]
    told = capsys.readouterr().out
    assert f"The run is in {tmp_path / 'run'}," in told
    assert (f"The models of round 1 are gone. Checkpoints: {says}" in told) == bool(says)
    assert ("are gone" in told) == bool(says)


@pytest.mark.parametrize("bad_round", [0, 1])
def test_who_is_dropped_counts_by_its_latest_training(tmp_path: Path, bad_round: int) -> None:
    """Client 2's update is bad in a round; before its first training it counts by its initial model."""
    settings: dict[str, Any] = {"method": Poisoned(at=bad_round), "on_bad_update": "drop", "rounds": 2}
    settings |= {"protocol": evaluation.FediOS(choose="last"), "participation": 1.0}
    found = []
    for every in (1, 2):
        result = small(tmp_path / str(every), **settings, eval_every=every).run()
        found.append(result.history.scores["after_training", "personal", "test"].score)
    assert found[0][-1].tolist() == found[1][-1].tolist()
    assert not np.isnan(found[0]).any()


def test_a_run_whose_losses_are_huge_has_records(tmp_path: Path) -> None:
    """Of losses above 1e280 no mean can be taken: they are recorded as undefined."""
    training = Training(lr=1e30, epochs=2, precision="float64", batch_size=1000)
    settings: dict[str, Any] = {"method": Local(), "rounds": 1, "training": training}
    scores = small(tmp_path / "run", **settings).run().history.scores["after_aggregation", "personal", "test"]
    assert scores is not None
    assert np.isnan(scores.loss).sum() > 0
    assert np.nanmax(scores.loss) < 1e280


def anywhere(**changes: Any) -> Federation:
    """A federation that names no folder."""
    return replace(small(Path("run"), rounds=1, **changes), output=None)


def test_runs_of_one_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its folder from the start, though it writes nothing before its data are there."""
    monkeypatch.chdir(tmp_path)
    found: list[Path] = []

    def meanwhile(self: Synthetic, clients: int, seed: int) -> FederatedData:
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)
        found.append(anywhere().run().folder)
        return self.federate(clients, seed)

    monkeypatch.setattr(Synthetic, "federate", meanwhile)
    found.append(anywhere().run().folder)
    assert len({folder.resolve() for folder in found}) == 2
    assert found[1].name.endswith("-FedAvg")


def test_a_refused_run_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no such domain"):
        anywhere(unseen="ink").run()
    assert not [*tmp_path.iterdir()]


def test_a_folder_in_which_another_run_begins_is_left_to_it(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with lock_folder(tmp_path / "run"), refused(InUse, "run"):
        small(tmp_path / "run", rounds=1).run()
    assert not [*(tmp_path / "run").iterdir()]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"sampling": Bernoulli(last="all")}, "a run that ends early lacks the last round"),
        ({"eval_every": 0}, "protocol.patience is 5, and eval_every is 0"),
    ],
)
def test_what_goes_badly_with_patience_is_remarked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], says: str
) -> None:
    small(tmp_path / "run", rounds=1, protocol=evaluation.Default(patience=5), **changes).run()
    assert says in capsys.readouterr().err


def test_the_users_objects_are_not_changed(tmp_path: Path) -> None:
    method, engine = FedAvg(), Inline()
    small(tmp_path / "run", method=method, engine=engine, averaging="uniform", rounds=1).run()
    assert vars(method) == {}
    assert engine.device == "auto"
    assert type(Federation(clients=np.int64(3)).clients) is int


def test_averaging_can_be_chosen(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"participation": 1.0, "rounds": 2}
    runs = [small(tmp_path / a, averaging=a, **settings) for a in ("samples", "uniform")]
    assert runs[0].run().rounds["loss"].tolist() != runs[1].run().rounds["loss"].tolist()


def test_a_bad_update_stops_the_run_with_its_checkpoint_intact(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"participation": 1.0, "checkpoint_every": 1}
    with refused(BadUpdate, "client 2"):
        small(tmp_path / "bad", method=Poisoned(), **settings).run()
    small(tmp_path / "good", rounds=1, **settings).run()
    bad, good = (bytes_of_run(tmp_path / name, settings=False) for name in ("bad", "good"))
    assert {k: bad[k] for k in bad if "checkpoints" in k} == {k: good[k] for k in good if "checkpoints" in k}


@pytest.mark.parametrize("actors", [0, 2])
def test_a_bad_update_can_be_dropped(tmp_path: Path, actors: int, request: pytest.FixtureRequest) -> None:
    if actors:
        request.getfixturevalue("kept_actors")
    engine = Ray(actors=actors) if actors else Inline()
    settings: dict[str, Any] = {"method": Poisoned(), "on_bad_update": "drop", "participation": 1.0}
    result = small(tmp_path / "run", engine=engine, rounds=3, **settings).run()
    assert [record["dropped"] for record in records_of(tmp_path / "run")] == [[], [2], []]
    assert result.complete
    assert result.rounds["dropped"].tolist() == [0, 1, 0]


class AllPoisoned(FedAvg):
    """Nobody's update can be used."""

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Spoil every update."""
        return {"weights": down["weights"] * torch.inf}, state


def test_a_cohort_in_which_all_failed_changes_nothing(tmp_path: Path) -> None:
    result = small(tmp_path / "run", method=AllPoisoned(), on_bad_update="drop", rounds=2).run()
    right = result.clients.query("part == 'test' and view == 'global'").groupby("round")["score"].sum()
    assert right.nunique() == 1
    assert result.rounds["dropped"].tolist() == [6, 6]


def test_a_divergence_is_reported_as_such(tmp_path: Path) -> None:
    with pytest.raises(BadUpdate, match="training\\.lr"):
        small(tmp_path / "run", training=Training(lr=1e6), rounds=3).run()


def test_batch_norm_with_one_sample(tmp_path: Path) -> None:
    data = Synthetic(train=12, test=12, partition=IID())
    settings: dict[str, Any] = {"data": data, "net": CNNB(), "clients": 12, "rounds": 1}
    with pytest.raises(UserError, match=r"client 0 has one training sample.*bn_single eval"):
        small(tmp_path / "refused", **settings).run()
    assert not (tmp_path / "refused").exists()
    assert small(tmp_path / "eval", **settings, training=Training(bn_single="eval")).run().complete


def test_a_federation_is_a_value_and_making_one_writes_no_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml, "dump", None)
    federation = small(Path("run"), seed=np.int64(3))
    assert replace(federation, rounds=9).rounds == 9
    with pytest.raises(BadCode):
        federation.rounds = 9  # type: ignore[misc]
    with refused(BadValue, "rounds"):
        replace(federation, rounds=0)
    with refused(Unknown, "round"):
        Federation(round=3)  # type: ignore[call-arg]
