"""Fine-tuning before an evaluation: its steps by hand, who takes them, and that nothing else changes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rayfl import Federation, Finetune, Inline, Ray, evaluation, load_models
from rayfl.data import DomainPerClient, Synthetic
from rayfl.engine.travel import EMPTY_DOWNLOAD
from rayfl.errors import Conflict, Unknown
from rayfl.evaluation.score import ClientScores, Score
from rayfl.methods import METHODS, Ditto, FedAvg, FedBN, FedCO2, FedProto, Local, Method
from rayfl.nets import CNNB, LeNet
from rayfl.randomness import generator, seed_of
from rayfl.training import AdamW, Client, Exponential, State
from tests.methods.cases import net_of
from tests.support import faults
from tests.support.by_hand import Run, federate, points, ragged, start
from tests.support.federations import records_of, same_bytes, small
from tests.support.refusals import refused

DATA = ragged()
TINY, WIDER = "rayfl.testing.by_hand.tiny", "rayfl.testing.by_hand.tiny_wide"
MODES = {"momentum": 0.9, "weight_decay": 0.01, "clip": 0.3}


def tuned(
    run: Run, groups: Sequence[Sequence[int]], untrained: Sequence[int] = (), **options: Any
) -> dict[int, Score]:
    """Fine-tune clients after a run's last round; return what each scores on its test data."""
    worker = run.worker
    worker.plan = replace(worker.plan, finetune=Finetune(**{"epochs": 1, **options}))
    download = run.server.download([i for group in groups for i in group])
    cut = [tuple(group) for group in groups]
    found = worker.finetune(max(0, len(run.results) - 1), download, cut, ("test",), EMPTY_DOWNLOAD, untrained)
    assert all(set(scores["test"]) == {"finetuned"} for scores in found.values())
    return {i: scores["test"]["finetuned"] for i, scores in found.items()}


def plain(run: Run, client: int, w: State) -> nn.Module:
    """Return the client's net as a module with these weights."""
    module = run.worker.client(client, 0).net._draw_module(0)
    assert not module.load_state_dict(dict(w), strict=False).missing_keys  # PyTorch adds counts of batches
    return module


def batches(run: Run, client: int, epochs: int) -> list[Tensor]:
    """Return the client's batches by the stream that the documentation names."""
    round, data = max(0, len(run.results) - 1), run.worker.data.clients[client]
    order = generator(seed_of(run.worker.plan.seed, "finetune", client, round), "batches", client, round, 0)
    train = torch.from_numpy(np.array(data.train))
    found: list[Tensor] = []
    for _ in range(epochs):
        parts = list(train[torch.randperm(len(train), generator=order)].split(8))
        if len(parts) > 1 and len(parts[-1]) == 1:
            parts[-2:] = [torch.cat(parts[-2:])]
        found += parts
    return found


def loss_of(x: Tensor, y: Tensor, modules: Sequence[nn.Module]) -> Tensor:
    return F.cross_entropy(sum(module(x) for module in modules), y)  # type: ignore[arg-type]


def loss_on_test(run: Run, client: int, *modules: nn.Module) -> float:
    x, y = run.worker.examples.batch(torch.from_numpy(np.array(run.worker.data.clients[client].test)))
    with torch.no_grad():
        return float(loss_of(x, y, [module.eval() for module in modules]))


def train(run: Run, client: int, modules: Sequence[nn.Module], trained: Sequence[nn.Parameter]) -> None:
    """Take the steps of one epoch of plain SGD with the sum of the modules' scores."""
    for batch in batches(run, client, 1):
        loss = loss_of(*run.worker.examples.batch(batch), modules)
        with torch.no_grad():
            for p, g in zip(trained, torch.autograd.grad(loss, trained), strict=True):
                p -= 0.1 * g


# ---- the steps


def test_a_step_from_zero_by_hand() -> None:
    """Logits W x with W = 0: after one step W = lr / 2 [x_0 - x_1, x_1 - x_0] / 2, of two samples."""
    data = points([((3.0, 1.0), 0), ((1.0, 2.0), 1)])
    (score,) = tuned(start(FedAvg(), data, lr=0.4), [[0]]).values()
    row = 0.4 * (np.array([3.0, 1.0]) - np.array([1.0, 2.0])) / 4
    margins = [2 * row @ (3.0, 1.0), -2 * row @ (1.0, 2.0)]
    assert score.loss == pytest.approx(np.log1p(np.exp(-np.array(margins))).mean(), abs=1e-15)
    assert score.score == sum(margin > 0 for margin in margins)


@pytest.mark.parametrize("part", ["all", "head", "body"])
@pytest.mark.parametrize("execution", ["loop", "stacked"])
def test_it_is_sgd_of_pytorch(part: Any, execution: Any) -> None:
    """BatchNorm, momentum, weight decay and a clip that bites; uneven clients, several in a stack."""
    run = federate(FedAvg(), DATA, TINY, 2, execution=execution, schedule=Exponential(decay=0.5), **MODES)
    scores = tuned(run, [[0, 1, 2, 3]], epochs=2, part=part)
    for i, score in scores.items():
        module = plain(run, i, run.server.state["weights"]).train(part != "head")
        trained = [
            p for n, p in module.named_parameters() if part == "all" or (part == "head") == ("head" in n)
        ]
        optimiser = torch.optim.SGD(trained, lr=0.05, momentum=0.9, weight_decay=0.01)
        for batch in batches(run, i, 2):
            x, y = run.worker.examples.batch(batch)
            gradients = torch.autograd.grad(F.cross_entropy(module(x), y), trained)
            norm = torch.stack([g.norm() for g in gradients]).norm()
            for p, g in zip(trained, gradients, strict=True):
                p.grad = g * (0.3 / (norm + 1e-6)).clamp(max=1)
            optimiser.step()
        assert score.loss == pytest.approx(loss_on_test(run, i, module), abs=1e-9)


@pytest.mark.parametrize("execution", ["loop", "stacked"])
def test_a_sum_of_two_nets_is_trained_as_a_sum(execution: Any) -> None:
    run = federate(FedCO2(intra="none", inter="none"), DATA, TINY, 1, execution=execution)
    for i, score in tuned(run, [[0, 1, 2, 3]]).items():
        state = run.clients[-1][i]
        weights = (run.server.state["weights"].merge(state["own"]), state["offline"])
        pair = [plain(run, i, w).train() for w in weights]
        train(run, i, pair, [p for module in pair for p in module.parameters()])
        assert score.loss == pytest.approx(loss_on_test(run, i, *pair), abs=1e-12)


def test_the_optimiser_is_the_run_s_and_begins_anew() -> None:
    """Whatever a client keeps of its own is neither used nor changed."""
    settings: dict[str, Any] = {"optimiser": AdamW(), "optimiser_state": "kept", "lr": 0.01}
    run = federate(FedAvg(), DATA, TINY, 2, **settings)
    kept = run.values()
    found = tuned(run, [[0, 1, 2, 3]])
    assert all(torch.equal(value, kept[name]) for name, value in run.values().items())
    for state in run.worker.states.values():
        state.clear()
    assert tuned(run, [[0, 1, 2, 3]]) == found


def test_a_learning_rate_of_its_own_follows_no_schedule() -> None:
    changes: dict[str, Any] = {"schedule": Exponential(decay=0.5)}
    run = federate(FedAvg(), DATA, TINY, 2, **changes)
    of_round, same, other = (tuned(run, [[0]], lr=lr)[0].loss for lr in (None, 0.05, 0.1))
    assert of_round == same != other


def test_clients_with_nets_of_their_own() -> None:
    """By the head, and no distance to a prototype."""
    run = federate(FedProto(), DATA, [TINY, WIDER], 1)
    for i, score in tuned(run, [[0, 1, 2, 3]], part="head").items():
        module = plain(run, i, run.clients[-1][i]["weights"]).eval()
        train(run, i, [module], [p for n, p in module.named_parameters() if "head" in n])
        assert score.loss == pytest.approx(loss_on_test(run, i, module), abs=1e-12)


def test_a_client_that_has_never_trained_starts_from_what_it_counts_by() -> None:
    """Its personal model is the global one until then, and so fine-tuning either is the same."""
    run = federate(Ditto(), DATA, TINY, [[0, 1]])
    run.worker.plan = replace(run.worker.plan, counts_by="global")
    of_global, own = (tuned(run, [[0, 1, 2, 3]], [2, 3], of=of) for of in ("global", "personal"))
    assert [of_global[i] == own[i] for i in range(4)] == [False, False, True, True]


# ---- runs


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_method(tmp_path: Path, name: str) -> None:
    settings: dict[str, Any] = {"method": METHODS[name](), "net": net_of(name, LeNet()), "rounds": 1}
    result = small(tmp_path, **settings, finetune=Finetune(epochs=1)).run()
    scores = result.history.scores["after_aggregation", "finetuned", "test"]
    assert scores is not None
    assert np.isfinite(scores.loss[0][scores.samples > 0]).all()
    assert result.summary["headline"]["view"] == "personal"


def test_nothing_else_changes(tmp_path: Path) -> None:
    """Neither other views, nor what clients and server hold, nor checkpoints of runs without it."""
    for name, finetune in (("with", Finetune(epochs=2)), ("without", Finetune())):
        small(tmp_path / name, method=Ditto(), finetune=finetune, rounds=2).run()
    with_it, without = (records_of(tmp_path / name) for name in ("with", "without"))
    for record in with_it:
        assert record["evaluation"]["after_aggregation"].pop("finetuned")
    assert with_it == without
    files = [
        {f.name: f.read_bytes() for f in (tmp_path / name / "checkpoints").glob("*.safetensors")}
        for name in ("with", "without")
    ]
    assert files[0] == files[1]
    assert "finetune" not in max((tmp_path / "without" / "checkpoints").glob("manifest-*")).read_text()


@pytest.mark.usefixtures("kept_actors")
def test_any_number_of_actors(tmp_path: Path) -> None:
    """Few clients train in a round and all are fine-tuned, so that states travel."""
    engines, tuning = (Inline(stack=3), Ray(actors=2, stack=3)), Finetune(epochs=1, of="personal")
    same_bytes(tmp_path, *engines, method=Ditto(), rounds=2, finetune=tuning)


def test_resumed(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"method": FedBN(), "net": CNNB(), "finetune": Finetune(epochs=1), "rounds": 2}
    same_bytes(tmp_path, resumed_after=1, checkpoint_every=1, **settings)


@pytest.mark.slow
def test_faults_change_no_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes, drivers and disks are lost, also while clients are fine-tuned."""
    plain_small = faults.small

    def small_tuned(folder: Path, engine: Any) -> Federation:
        return replace(plain_small(folder, engine), finetune=Finetune(epochs=1, of="personal"))

    monkeypatch.setattr(faults, "small", small_tuned)
    monkeypatch.setattr(faults, "_known", {})
    expected = faults.undisturbed()
    assert b"finetuned" in expected.end["metrics.jsonl"]
    assert not [wrong for seed in range(40) if (wrong := faults.simulate(seed, expected)[1])]


def test_clients_that_never_train(tmp_path: Path) -> None:
    data = Synthetic(train=240, test=90, shape=(3, 16, 16), domains=3, partition=DomainPerClient())
    settings: dict[str, Any] = {"data": data, "clients": 3, "net": CNNB(), "unseen": "domain1", "rounds": 1}
    small(tmp_path, **settings, finetune=Finetune(epochs=1)).run()
    (record,) = records_of(tmp_path)
    unseen: ClientScores = record["evaluation"]["unseen"]
    assert unseen["finetuned"]["test"]["loss"][2] != unseen["global"]["test"]["loss"][2]  # type: ignore[index]


def test_some_clients_now_and_then(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``eval_every`` and ``eval_clients`` say who pays, and the start says how much."""
    tuning = Finetune(epochs=2)
    settings: dict[str, Any] = {"eval_every": 2, "eval_clients": 3, "participation": 1.0, "quiet": False}
    small(tmp_path, **settings, finetune=tuning).run()
    told = " ".join(capsys.readouterr().out.split())
    assert "2 epochs of 3 clients in each of 2 evaluations" in told
    evaluations = [record.get("evaluation") for record in records_of(tmp_path)]
    assert [bool(found) for found in evaluations] == [False, True, False, True]
    assert len(evaluations[1]["after_aggregation"]["finetuned"]["test"]["clients"]) == 3


def test_it_can_be_the_headline_and_models_are_those_before(tmp_path: Path) -> None:
    protocol = evaluation.Default(view="finetuned", choose="best_val")
    result = small(tmp_path, rounds=2, finetune=Finetune(epochs=1), protocol=protocol).run()
    assert result.summary["headline"]["view"] == "finetuned"
    assert load_models(tmp_path).views == ("personal", "global")


# ---- settings


class Named(FedAvg):
    """Has a view of that name already."""

    views = ("personal", "finetuned")

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score the received model twice."""
        scores = client.net.eval(down["weights"], x)
        return {"personal": scores, "finetuned": scores}


@pytest.mark.parametrize(
    ("method", "options", "headline", "kind", "place"),
    [
        (FedAvg(), {"of": "personal"}, {}, Conflict, "finetune.of"),
        (FedBN(), {"of": "global"}, {}, Conflict, "finetune.of"),
        (Local(), {"of": "global"}, {}, Conflict, "finetune.of"),
        (Named(), {}, {}, Conflict, "finetune.epochs"),
        (FedAvg(), {"epochs": 0}, {"view": "finetuned"}, Unknown, "protocol.view"),
        (FedAvg(), {}, {"view": "finetuned", "point": "after_training"}, Unknown, "protocol.view"),
    ],
)
def test_models_and_headlines_that_there_are_not(
    tmp_path: Path, method: Method, options: Any, headline: Any, kind: Any, place: str
) -> None:
    changes: dict[str, Any] = {"method": method, "protocol": evaluation.Default(**headline)}
    with refused(kind, place):
        small(tmp_path / "run", **changes, finetune=Finetune(**{"epochs": 1} | options)).run()
    assert not (tmp_path / "run").exists()


def test_options_without_effect_are_refused() -> None:
    with refused(Conflict, "finetune.epochs"):
        Finetune(lr=0.1)
