"""Runs that learn numbers, several labels or classes of positions: one direction, and the words that fit."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from rayfl import Federation, Inline, Result, Training, load_models, resumed
from rayfl.commands.report import main as report
from rayfl.data import Arrays, Dirichlet
from rayfl.errors import Conflict
from rayfl.evaluation import Default
from rayfl.evaluation.metrics import client_metrics
from rayfl.methods import METHODS, Ditto, FedAvg, FedFomo, FedPer, FedProto
from rayfl.nets import MLP, CharLSTM
from rayfl.record.history import read_records
from rayfl.training.losses import BatchLoss
from tests.support.refusals import refused

RNG = np.random.default_rng(3)
X = RNG.standard_normal((160, 5)).astype(np.float32)
NUMBERS = (X[:, :2] @ np.array([[1.0], [-2.0]]) + 0.1 * RNG.standard_normal((160, 1))).astype(np.float32)
USERS = np.arange(160) % 8
TOKENS = np.stack([(np.arange(160) + k) % 7 for k in range(6)], axis=1)


def federation(folder: Path, y: np.ndarray = NUMBERS, **changes: Any) -> Federation:
    """Eight clients whose numbers are nearly linear."""
    settings: dict[str, Any] = {
        "method": FedAvg(),
        "data": Arrays(X, y, users=USERS, val_fraction=0.25),
        "net": MLP(hidden=[4]),
        "rounds": 4,
        "training": Training(lr=0.05, batch_size=8, epochs=4),
        "engine": Inline(),
        "loggers": [],
        "output": str(folder),
        "quiet": True,
    }
    return Federation(**(settings | changes))


def test_numbers_are_learned_and_told_as_what_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No accuracy and no per cent anywhere; the best is the lowest."""
    runs = [tmp_path / "a", tmp_path / "b"]
    for folder, rounds in zip(runs, (1, 12)):
        federation(folder, quiet=False, rounds=rounds, metrics=["r2"]).run()
    shown = capsys.readouterr().out
    first, last = map(Result.load, runs)
    assert 0 < last.figure < 0.5 < first.figure
    assert f"MSE {last.figure:.4f}"[:9] in shown
    assert report([*map(str, runs), "--target", "0.5"]) == 0
    shown += capsys.readouterr().out
    assert "Test MSE" in shown
    assert "rounds to" in shown
    page = (runs[1] / "report.html").read_text()
    text = re.sub(r"<style.*?</style>|<script.*?</script>|<[^>]*>", " ", page, flags=re.S)
    assert "Test MSE" in text
    assert "Highest test MSE" in text
    for told in (shown, text):
        assert not re.search(r"accurac|\d %", told)
    history = last.history
    errors = history.scores["after_aggregation", "global", "test"].figure[-1]
    worst = client_metrics(errors * history.population.samples["test"], history.population)["worst_decile"]
    assert worst == pytest.approx(errors.max())


def test_the_best_round_is_that_of_the_lowest_error(tmp_path: Path) -> None:
    federation(tmp_path / "run", protocol=Default(choose="best_val"), training=Training(lr=0.5)).run()
    result = Result.load(tmp_path / "run")
    entry = next(e for e in result.summary["views"] if e["view"] == "global")
    best = int(np.argmin(entry["each"]["val"]["mean"]))
    assert entry["best_val"]["rounds"] == [entry["each"]["val"]["rounds"][best]]
    patient = Default(patience=1)
    federation(
        tmp_path / "short", protocol=patient, rounds=30, training=Training(lr=1e-9, batch_size=8)
    ).run()
    assert len(Result.load(tmp_path / "short").history.rounds) < 30


def test_models_predict_what_was_scored(tmp_path: Path) -> None:
    federation(tmp_path / "run", method=Ditto(), rounds=2, checkpoint_every=1).run()
    models = load_models(tmp_path / "run", data=False)
    whole = Arrays(X, NUMBERS, users=USERS, val_fraction=0.25).federate(None, 0)
    rows = Result.load(tmp_path / "run").clients.query("round == 1 and view == 'personal' and part == 'test'")
    for client, figure in zip(rows["client"], rows["figure"], strict=True):
        test = whole.clients[client].test
        said = models[client].predict(X[test]).numpy()
        assert np.square(said - NUMBERS[test]).mean() == pytest.approx(figure, rel=1e-5)


def test_a_run_goes_on_with_the_same_bytes(tmp_path: Path) -> None:
    data = Arrays(X, NUMBERS, users=USERS, val_fraction=0.25)
    federation(tmp_path / "whole", checkpoint_every=2).run()
    federation(tmp_path / "parts", checkpoint_every=2, rounds=2).run()
    resumed(tmp_path / "parts", {"rounds": 4, "quiet": True}, data=data).run()
    assert [*read_records(tmp_path / "parts")] == [*read_records(tmp_path / "whole")]


def test_several_labels_and_positions(tmp_path: Path) -> None:
    labels = np.stack([X[:, 0] > 0, X[:, 1] > 1], axis=1)
    found = federation(tmp_path / "labels", labels, method=FedPer(), metrics=["f1"], rounds=20).run()
    assert found.figure > 0.8
    assert found.figure_kind.name == "label accuracy"
    texts = Arrays(TOKENS[:, :-1], TOKENS[:, 1:], users=USERS)
    net = CharLSTM(embedding=4, hidden=16, layers=1, positions=True)
    training = Training(lr=1.0, batch_size=4, epochs=4)
    said = federation(
        tmp_path / "texts", data=texts, net=net, metrics=["perplexity"], training=training
    ).run()
    assert said.figure > 0.8
    assert said.summary["headline"]["measures"]["perplexity"] < 3


def test_what_does_not_go_together_is_refused_by_name(tmp_path: Path) -> None:
    with refused(Conflict, "method") as caught:
        federation(tmp_path / "a", method=FedProto()).run()
    named = str(caught.value).partition("choose one of ")[2].split(", ")
    assert {"FedAvg", "Ditto", "FedCO2"} <= {*named} < {*METHODS, "FedAvg"}
    with refused(Conflict, "net"):  # one row for each input, where each position needs one
        federation(tmp_path / "b", data=Arrays(TOKENS[:, :-1], TOKENS[:, 1:]), net=CharLSTM()).run()
    with refused(Conflict, "net"):
        federation(tmp_path / "c", data=Arrays(TOKENS, TOKENS[:, 0]), net=CharLSTM(positions=True)).run()
    with refused(Conflict, "training.loss"):  # which has no loss of a sample
        federation(tmp_path / "d", method=FedFomo(), training=Training(loss=SpreadOfErrors())).run()
    assert not any(tmp_path.glob("?/checkpoints/*"))


class SpreadOfErrors(BatchLoss):
    """The variance of what is wrong."""

    def mean(self, scores: Tensor, targets: Tensor, counts: Tensor | None = None) -> Tensor:
        return (scores - targets).var(0).mean()


def test_numbers_are_divided_by_their_ranges(tmp_path: Path) -> None:
    data = Arrays(X, NUMBERS, partition=Dirichlet(alpha=0.1)).federate(4, 0)
    matrix = data.label_matrix("train")
    assert matrix.shape == (4, 10)
    assert data.skew()["label_distance"] > 0.4
    assert "ranges" in data.table()


def test_one_model_for_all_comes_to_the_least_squares_of_all(tmp_path: Path) -> None:
    """A step of all of a client's samples in a round is a step of gradient descent on the pooled error."""
    y = (X @ RNG.standard_normal((5, 1)) + 2.0 + USERS[:, None]).astype(np.float32)
    data = Arrays(X, y, users=USERS, test_from="pooled", test_share=0.25)
    training = Training(lr=0.2, batch_size=64, precision="float64")
    whole = {"data": data, "net": MLP(hidden=[]), "training": training, "participation": 1.0}
    result = federation(tmp_path / "run", rounds=300, **whole).run()
    divided = data.federate(None, 0)
    train, test = (divided.held.indices[split] for split in ("train", "test"))
    ones = np.column_stack([X, np.ones(len(X))]).astype(np.float64)
    solution = np.linalg.lstsq(ones[train], y[train], rcond=None)[0]
    error = np.square(ones[test] @ solution - y[test]).mean()
    headline = result.summary["headline"]["averages"]["pooled"]["figure"]
    assert headline == pytest.approx(error, rel=1e-6)


def test_models_pulled_together_come_to_their_closed_form(tmp_path: Path) -> None:
    """Of one input without a bias: w_k = (a_k + lam m) / (b_k + lam), m their mean, with full batches."""
    x = np.abs(X[:, :1]) + 0.5
    y = (x * (1 + USERS[:, None])).astype(np.float32)
    data = Arrays(x, y, users=USERS, test_from="pooled", test_share=0.25)
    training = Training(lr=0.2, batch_size=64, precision="float64")
    net = "tests.test_tasks.slope"
    settings: dict[str, Any] = {"data": data, "net": net, "training": training, "averaging": "uniform"}
    settings |= {"method": METHODS["MRMTL"](lam=0.5), "participation": 1.0}
    federation(tmp_path / "run", rounds=100, eval_every=100, checkpoint_every=100, **settings).run()
    models, divided = load_models(tmp_path / "run", data=False), data.federate(None, 0)
    a = np.array([2 * (x[c.train] * y[c.train]).mean() for c in divided.clients])
    b = np.array([2 * np.square(x[c.train]).mean() for c in divided.clients])
    m = (a / (b + 0.5)).mean() / (1 - (0.5 / (b + 0.5)).mean())
    own = [float(models[i].predict(np.ones((1, 1), np.float32)).item()) for i in range(8)]
    assert own == pytest.approx(((a + 0.5 * m) / (b + 0.5)).tolist(), rel=1e-5)


def slope(shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Linear(shape[0], classes, bias=False)
