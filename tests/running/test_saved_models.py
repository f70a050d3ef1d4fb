"""Models read back from a run folder are those that the run has scored."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rayfl import Federation, Inline, Result, Training, UserError, evaluation, load_models
from rayfl.__main__ import main
from rayfl.callbacks.callback import Callback, Run
from rayfl.data import Dirichlet, EmbeddedDigits, Synthetic
from rayfl.engine.models import Models
from rayfl.errors import Conflict, Missing, Unknown
from rayfl.evaluation.finetune import Finetune
from rayfl.federation import resumed
from rayfl.methods import METHODS, FedAvg
from rayfl.nets import CNNB
from rayfl.record.checkpoint import Checkpoints
from rayfl.training import Client, State
from tests.methods.cases import net_of
from tests.support.federations import records_of, small
from tests.support.own_modules import SCALED, OwnModules
from tests.support.refusals import refused, told

KINDS = ("DCPFL", "FedBABU", "FedCO2", "FediOS", "FedProto", "FedRoD", "PFedMe", "PerFedAvg")
"""A method of each kind: of one net, of several, with prototypes, and those that personalise with data."""
EACH = [pytest.param(name, marks=[] if name in KINDS else pytest.mark.slow) for name in METHODS]


def models_of(folder: Path, **changes: Any) -> Models:
    """The models of a run of one round."""
    small(folder, rounds=1, **changes).run()
    return load_models(folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a round of FedAvg."""
    folder = tmp_path_factory.mktemp("models") / "run"
    small(folder, rounds=1).run()
    return folder


@pytest.fixture(scope="module", params=EACH)
def run_of_each(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two rounds of a method; with each of them in turn."""
    folder = tmp_path_factory.mktemp("models") / "run"
    small(folder, method=METHODS[request.param](), net=net_of(request.param, CNNB()), rounds=2).run()
    return folder


def test_models_predict_what_was_recorded(run_of_each: Path) -> None:
    models = load_models(run_of_each)
    assert (models.round, len(models)) == (2, 12)
    recorded = Result.load(run_of_each).clients.query("round == 1 and point == 'after_aggregation'")
    for split in ("val", "test"):
        for client in (0, 7):
            x, y = models.batch(client, split)
            scores = models.scores(client, x)
            assert set(scores) == set(models.views)
            for view, own in scores.items():
                query = f"client == {client} and part == '{split}' and view == '{view}'"
                expected = recorded.query(query)["score"].tolist()
                assert [int((own.argmax(1) == y).sum())] * len(expected) == expected


def test_models_leave_without_data(run_of_each: Path) -> None:
    """Every view of every method as a module of PyTorch's own, for batches of any size."""
    models, known = load_models(run_of_each, data=False), load_models(run_of_each)
    if not models._worker.method.overrides("personalise"):  # which needs data
        with refused(Missing):
            models.batch(0)
    x, _ = known.batch(3)
    raw = torch.as_tensor(known.data.dataset.inputs[known.data.clients[3].test])
    for view, scores in known.scores(3, x).items():
        module = models[3].module(view)
        assert all(not value.requires_grad or value.is_leaf for value in module.state_dict().values())
        for rows in (x, x[:3]):
            torch.testing.assert_close(module(rows), scores[: len(rows)], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(models[3].predict(raw, view), scores.softmax(1), rtol=1e-5, atol=1e-5)


def test_features_are_what_the_last_layer_sees(tmp_path: Path, run: Path) -> None:
    models = models_of(tmp_path / "run", method=METHODS["FedCO2"]())
    x, _ = models.batch(3)
    features = models.features(3, x)
    shapes = {view: tuple(z.shape) for view, z in features.items()}  # the personal view is a sum of two
    assert shapes == {"online": (len(x), 84), "offline": (len(x), 84)}
    assert not torch.equal(features["online"], features["offline"])
    models = load_models(run)
    head = models.server["weights"]
    z = models.features(3, x)["personal"]
    expected = z @ head["head.weight"].T + head["head.bias"]
    torch.testing.assert_close(models.scores(3, x)["personal"], expected)


def test_models_of_a_run_in_bfloat16_are_nets(tmp_path: Path) -> None:
    training = Training(lr=0.05, batch_size=20, precision="bfloat16")
    models = models_of(tmp_path / "run", training=training)
    x, _ = models.batch(3)
    scores, module = models.scores(3, x)["personal"], models[3].module("personal")
    assert [name for name, _ in module.named_children()] == ["conv", "fc", "head"]
    torch.testing.assert_close(module(x), scores, rtol=0.02, atol=0.02)
    assert models.features(3, x)["personal"].dtype == scores.dtype == torch.float32


def test_scores_are_differentiable_by_images_which_may_run_backwards(run: Path) -> None:
    models = load_models(run)
    x, _ = models.batch(0)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(models.scores(0, x)["personal"].sum(), x)
    assert gradient.abs().max() > 0
    inputs = models.data.dataset.inputs[:3]
    expected = models[0].predict(inputs[::-1].copy())
    torch.testing.assert_close(models[0].predict(inputs[::-1]), expected)


def test_earlier_checkpoints(tmp_path: Path, run: Path) -> None:
    small(tmp_path / "whole", rounds=2, checkpoint_every=1).run()
    early, last = load_models(tmp_path / "whole", round=1), load_models(tmp_path / "whole")
    for models in (early, last):
        cohorts = [record["cohort"] for record in records_of(tmp_path / "whole")[: models.round]]
        assert {k for k in range(len(models)) if models[k].trained} == {k for own in cohorts for k in own}
    x, _ = early.batch(5)
    personal = early.scores(5, x)["personal"]
    assert torch.equal(personal, load_models(run).scores(5, x)["personal"])
    assert not torch.equal(personal, last.scores(5, x)["personal"])
    with pytest.raises(UserError, match="no checkpoint after 3 rounds; it has those after 1, 2"):
        load_models(tmp_path / "whole", round=3)


class Fading(FedAvg):
    """After three rounds its updates are zeros, so that a model of these rounds is the best."""

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        up, state = await super().local_update(client, state, down)
        return {"weights": up["weights"] * (client.round < 3)}, state


class Dies(Callback):
    """Ends the process, as far as a run can tell, before the checkpoint of a round."""

    def __init__(self, round: int) -> None:
        self.round = round

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        if record["round"] == self.round:
            raise RuntimeError("killed")
        return False


def test_the_checkpoint_of_the_best_evaluation_is_kept(tmp_path: Path) -> None:
    """With the newest two; after any kill the files are the same, and without the option they are as ever."""

    def made(name: str, keep: str = "best") -> Federation:
        return small(tmp_path / name, method=Fading(), rounds=7, checkpoint_keep=keep)

    def files(name: str) -> dict[str, bytes]:
        paths = [tmp_path / name / "metrics.jsonl", *(tmp_path / name / "checkpoints").iterdir()]
        return {path.name: path.read_bytes() for path in paths}

    result = made("whole").run()
    accuracies = result.summary["views"][0]["each"]["val"]["mean"]
    best = accuracies.index(max(accuracies)) + 1
    assert best < 4
    assert Checkpoints(tmp_path / "whole" / "checkpoints").rounds == [best, 6, 7]
    models = load_models(tmp_path / "whole", round="best")
    assert models.round == best
    x, y = models.batch(5)
    recorded = result.history.scores["after_aggregation", "personal", "test"].score[best - 1, 5]
    assert int((models.scores(5, x)["personal"].argmax(1) == y).sum()) == recorded
    for round in (0, 4):
        with pytest.raises(RuntimeError):
            made(f"killed {round}").run([Dies(round)])
        resumed(tmp_path / f"killed {round}").run()
        assert files(f"killed {round}") == files("whole")
    made("last", keep="last").run()
    assert Checkpoints(tmp_path / "last" / "checkpoints").rounds == [6, 7]
    assert files("last").items() <= files("whole").items()
    with refused(Missing, "checkpoints"):
        load_models(tmp_path / "last", round="best")


def test_without_scores_or_checkpoints_none_is_the_best(tmp_path: Path) -> None:
    for changes in ({"checkpoint_every": 0}, {"eval_every": 0}, {"data": Synthetic(train=90, test=30)}):
        with refused(Conflict, "checkpoint_keep"):
            small(tmp_path / "run", checkpoint_keep="best", **changes).run()
        assert not (tmp_path / "run").exists()


def test_models_are_scored_on_each_others_test_data(tmp_path: Path, monkeypatch: Any) -> None:
    """The diagonal is what the run has recorded; the rest is by hand, from uint8 images and probabilities."""
    monkeypatch.setattr("rayfl.engine.models.BATCH", 3)
    data = Synthetic(train=300, test=90, shape=(3, 20, 20), dtype="uint8", partition=Dirichlet(alpha=1.0))
    small(tmp_path / "run", method=METHODS["FedPer"](), data=data, clients=6, rounds=2).run()
    clients, path = [4, 1, 5], tmp_path / "matrix.csv"
    clients_given = ["4", "1", "4", "5"]  # each counts once
    assert main(["export", str(tmp_path / "run"), "--client", *clients_given, "--matrix", str(path)]) == 0
    rows = list(csv.DictReader(path.open()))
    assert [row["model of client"] for row in rows] == ["4", "1", "5"]
    found = np.array([[float(row[f"data of client {i}"]) for i in clients] for row in rows])
    models = load_models(tmp_path / "run")
    last = Result.load(tmp_path / "run").history.scores["after_aggregation", "personal", "test"].figure[-1]
    np.testing.assert_allclose(found.diagonal(), last[clients])
    dataset = models.data.dataset
    for row, one in zip(found, clients):
        for accuracy, other in zip(row, clients):
            test = models.data.clients[other].test
            right = models[one].predict(dataset.inputs[test]).argmax(1).numpy() == dataset.labels[test]
            assert accuracy == pytest.approx(right.mean())
    assert len(np.unique(found)) > 3
    with refused(Unknown, "view"):
        models.figures(clients, "online")


def test_a_matrix_is_of_the_models_that_the_run_reports(tmp_path: Path, capsys: Any) -> None:
    """Fine-tuned ones are not kept, and those right after training neither."""
    settings: dict[str, Any] = {"method": METHODS["FedAvg"](), "rounds": 1, "finetune": Finetune(epochs=1)}
    for name, protocol in (("tuned", {"view": "finetuned"}), ("trained", {"point": "after_training"})):
        small(tmp_path / name, **settings, protocol=evaluation.Default(**protocol)).run()
    options = ["--client", "all", "--matrix", str(tmp_path / "matrix.csv")]
    with told(Conflict, "view"):
        assert main(["export", str(tmp_path / "tuned"), *options]) == 2
    assert main(["export", str(tmp_path / "tuned"), *options, "--view", "global"]) == 0
    assert "warning" not in capsys.readouterr().err
    assert main(["export", str(tmp_path / "trained"), *options]) == 0
    assert "scores at after_training" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "trained"), "--client", "all"]) == 0
    assert capsys.readouterr().err.count("scores at after_training") == 1


def test_clients_of_an_unseen_domain_have_the_models_of_new_clients(tmp_path: Path) -> None:
    settings: Any = {"data": EmbeddedDigits(), "clients": 5, "participation": 1.0, "unseen": "photo"}
    models = models_of(tmp_path / "run", **settings, method=METHODS["FedBN"](), net=CNNB())
    assert len(models) == 5
    names = [models.data.dataset.domain_names[s.domain] for s in models.data.clients]
    assert names == ["handwriting", "inverted", "printed", "lowres", "photo"]
    (record,) = records_of(tmp_path / "run")
    x, y = models.batch(4)
    right = models.scores(4, x)["personal"].argmax(1) == y
    assert int(right.sum()) == record["evaluation"]["unseen"]["personal"]["test"]["score"][4]


def test_what_is_not_there(tmp_path: Path, run: Path) -> None:
    with refused(Missing, tmp_path):
        load_models(tmp_path)
    with refused(Unknown, "client 12"):
        load_models(run).batch(12)
    small(tmp_path / "run", rounds=1, checkpoint_every=0, eval_every=0).run()
    with refused(Missing, "run"):
        load_models(tmp_path / "run")


class Keeps(Callback):
    """Keeps what the model of client 3 says of its test data after the last round."""

    def after_round(self, run: Run, record: Mapping[str, Any]) -> bool:
        models = run.models()
        self.x, _ = models.batch(3)
        self.scores = models.scores(3, self.x)["personal"]
        return False


@pytest.mark.parametrize("execution", ["loop", "stacked"])
def test_models_have_the_memory_layout_of_the_run(tmp_path: Path, execution: Any) -> None:
    """A loop and a stack have different ones, and so different last bits."""
    engine = Inline(device="cpu", execution=execution)
    small(tmp_path / "run", engine=engine, rounds=1).run([seen := Keeps()])
    models = load_models(tmp_path / "run")
    x, _ = models.batch(3)
    assert x.stride() == seen.x.stride()
    assert torch.equal(models.scores(3, x)["personal"], seen.scores)


def test_other_code_than_the_runs_is_told(tmp_path: Path, own_modules: OwnModules, caplog: Any) -> None:
    small(tmp_path / "run", method=own_modules.load("mine", SCALED).Mine(), rounds=1).run()
    load_models(tmp_path / "run", data=False)
    assert "(mine)" not in caplog.text
    own_modules.load("mine", SCALED.replace("1.0", "0.1"))
    load_models(tmp_path / "run", data=False)
    assert "(mine)" in caplog.text
