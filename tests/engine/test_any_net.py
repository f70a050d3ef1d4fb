"""Runs with modules of the user's own, and with nets for texts and vectors."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from rayfl import Inline, Training, load_models, resumed
from rayfl.data import Synthetic
from rayfl.errors import BadCode
from rayfl.evaluation.finetune import Finetune
from rayfl.methods import FML, Ditto, FedAvg, FedPer, FedProto, FedProx, Local
from rayfl.nets import MLP, CharLSTM, Module, TokenMLP
from rayfl.system.error_report import exit_code
from rayfl.training import Batch, Client, Params, State
from tests.support.by_hand import assert_same, federate, points
from tests.support.federations import INLINE_AND_RAY, bytes_of_run, records_of, same_bytes, small
from tests.support.modules import Sequences, Sharpened, hooked
from tests.support.refusals import refused

MODULES = "tests.support.modules"
TRANSFORMER, GROUPED, RECURRENT = (f"{MODULES}.{name}" for name in ("Transformer", "Grouped", "Recurrent"))
SHARPENED = f"{MODULES}.Sharpened"
TEXTS, VECTORS = Sequences(), Sequences(kind="vectors")
SETTINGS: dict[str, Any] = {"rounds": 2, "clients": 6, "training": Training(lr=0.3, batch_size=10)}


class Later(FedAvg):
    """A second fit whose loss goes by its own value."""

    async def local_update(self, client: Client, state: State, down: State) -> Any:
        def doubled(w: Params, batch: Batch, extra: None) -> torch.Tensor:
            loss = client.loss(w, batch)
            return loss if loss > 9 else 2 * loss

        fitted = await client.fit(down["weights"], client.loss)
        return {"weights": (await client.fit(fitted.weights, doubled)).weights}, state


NETS = [
    pytest.param(TRANSFORMER, TEXTS, id="attention"),
    pytest.param(GROUPED, VECTORS, id="GroupNorm"),
    pytest.param(CharLSTM(hidden=8), TEXTS, id="CharLSTM"),
    pytest.param(RECURRENT, TEXTS, id="GRU"),
]


@pytest.mark.parametrize(("net", "data"), NETS)
def test_a_resumed_run_is_the_whole_run(tmp_path: Path, net: Any, data: Any) -> None:
    same_bytes(tmp_path, resumed_after=1, **SETTINGS, net=net, data=data, method=Ditto())


@pytest.mark.usefixtures("kept_actors")
@pytest.mark.parametrize("net", [TRANSFORMER, pytest.param(CharLSTM(hidden=8), marks=pytest.mark.slow)])
def test_two_actors_are_inline(tmp_path: Path, net: Any) -> None:
    same_bytes(tmp_path, *INLINE_AND_RAY, **SETTINGS, net=net, data=TEXTS)


@pytest.mark.parametrize(("net", "data"), NETS[:2])
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_stacked_is_the_loop(tmp_path: Path, net: Any, data: Any) -> None:
    settings = SETTINGS | {"training": Training(lr=0.3, batch_size=10, precision="float64")}
    found = []
    for execution in ("loop", "stacked"):
        folder = tmp_path / execution
        small(folder, **settings, net=net, data=data, engine=Inline(execution=execution, stack=6)).run()
        found.append([loss for record in records_of(folder) for loss in record["loss"]])
    assert len(found[0]) == 6
    assert found[0] == pytest.approx(found[1], abs=1e-9)


SIZES = {"image_size": 16, "patch_size": 8, "num_layers": 1, "num_heads": 1, "hidden_dim": 4, "mlp_dim": 4}
VISION = "torchvision.models.VisionTransformer"
IMAGES = Synthetic(train=60, test=30, shape=(3, 16, 16))


def odd(kind: str) -> Module:
    return Module(path=f"{MODULES}.Odd", arguments={"kind": kind})


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize(
    ("net", "data", "method"),
    [
        *((net, TEXTS, FedAvg()) for net in (CharLSTM(hidden=8), RECURRENT)),
        (f"{MODULES}.hooked", VECTORS, FedAvg()),
        *((odd(kind), VECTORS, FedAvg()) for kind in ("module hook", "branch", "spectral norm", "cell")),
        *((odd(kind), VECTORS, FedAvg()) for kind in ("checkpoint", "routing", "float32")),
        *((odd(kind), VECTORS, FedAvg()) for kind in ("zero head", "zero gate")),
        (MLP(hidden=[4]), VECTORS, Later()),
        ([MLP(hidden=[4]), odd("branch")], VECTORS, Local()),
        (MLP(hidden=[4]), VECTORS, FML(meme=odd("branch"))),
    ],
    ids=str,
)
def test_what_stacks_differently_goes_on_in_the_loop(
    tmp_path: Path, net: Any, data: Any, method: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings = SETTINGS | {"net": net, "data": data, "method": method, "rounds": 1}
    small(tmp_path / "run", **settings, engine=Inline(execution="stacked", stack=6)).run()
    assert told_of_the_loop(caplog) == 1
    assert "execution: loop" in (tmp_path / "run" / "config.yaml").read_text()


def told_of_the_loop(caplog: pytest.LogCaptureFixture) -> int:
    return sum("engine.execution=loop" in record.message for record in caplog.records)


def test_the_loop_is_decided_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As if it had been asked for; a resumed run has it from its configuration."""
    training = Training(lr=0.3, batch_size=10, precision="bfloat16")
    settings = SETTINGS | {"net": odd("tensor hook"), "data": VECTORS, "training": training}
    small(tmp_path / "loop", **settings, engine=Inline(execution="loop")).run()
    small(tmp_path / "run", **settings | {"rounds": 1}, engine=Inline(execution="stacked")).run()
    resumed(tmp_path / "run", {"rounds": 2, "quiet": True}).run()
    assert told_of_the_loop(caplog) == 1
    assert bytes_of_run(tmp_path / "run") == bytes_of_run(tmp_path / "loop")


def test_hooks_on_parameters_act_before_rules_and_clip() -> None:
    """As in plain PyTorch, where they act in ``backward``."""
    data, net = points([((1, 2), 0), ((0, 1), 1), ((3, 1), 1)]), hooked((1, 1, 2), 2).double()
    options = {"lr": 0.5, "momentum": 0.9, "weight_decay": 0.1, "clip": 1.5, "epochs": 4}
    run = federate(FedProx(mu=0.3), data, f"{MODULES}.hooked", 2, **options)
    net.load_state_dict(dict(run.worker.initial))
    x, y = run.worker.examples.batch(torch.arange(3))
    for _ in range(2):
        optimiser = torch.optim.SGD(net.parameters(), 0.5, momentum=0.9, weight_decay=0.1)
        received = [p.detach().clone() for p in net.parameters()]
        for _ in range(4):
            optimiser.zero_grad()
            F.cross_entropy(net(x), y).backward()
            for parameter, before in zip(net.parameters(), received, strict=True):
                parameter.grad += 0.3 * (parameter.detach() - before)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.5)
            optimiser.step()
    expected = {name: t.detach() for name, t in net.named_parameters()}
    assert_same(dict(run.server.state["weights"]), expected, 1e-12)


TWO = points([((1, 2), 0), ((0, 1), 1), ((3, 1), 1)], [((2, 1), 0), ((1, 1), 1), ((0, 2), 1)])


@pytest.mark.parametrize("execution", ["loop", "stacked"])
def test_code_after_the_head_acts_as_in_plain_pytorch(execution: str) -> None:
    net = Sharpened((1, 1, 2), 2).double()
    run = federate(FedAvg(), TWO, SHARPENED, [[0]], lr=0.5, epochs=3, execution=execution)
    names = dict(zip(net.state_dict(), run.worker.initial, strict=True))
    net.load_state_dict({name: run.worker.initial[entry] for name, entry in names.items()})
    x, y = run.worker.examples.batch(torch.arange(3))
    optimiser = torch.optim.SGD(net.parameters(), 0.5)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimiser.step()
    expected = {names[name]: t.detach() for name, t in net.named_parameters()}
    assert_same(dict(run.server.state["weights"]), expected, 1e-12)


@pytest.mark.parametrize("execution", ["loop", "stacked"])
def test_methods_that_take_such_a_net_apart_in_training_are_refused(tmp_path: Path, execution: str) -> None:
    """Before the run where a stack is tried."""
    settings = SETTINGS | {"net": SHARPENED, "data": VECTORS, "method": FedProto()}
    with refused(BadCode, "net"):
        small(tmp_path / "run", **settings, engine=Inline(execution=execution, stack=6)).run()
    assert (tmp_path / "run").exists() == (execution == "loop")


def test_methods_that_take_such_a_net_apart_in_scoring_alone_are_not(tmp_path: Path) -> None:
    settings = SETTINGS | {"net": SHARPENED, "data": VECTORS, "method": FedPer(), "rounds": 1}
    small(tmp_path / "run", **settings, finetune=Finetune(epochs=1)).run()
    models = load_models(tmp_path / "run")
    x, _ = models.batch(0)
    module = models[0].module("personal")
    assert isinstance(module, Sharpened)
    assert torch.equal(module(x), models.scores(0, x)["personal"])


@pytest.mark.parametrize(("kind", "further"), [("last", True), ("first", False), ("number", False)])
def test_nets_that_remember_other_steps_are_refused(tmp_path: Path, kind: str, further: bool) -> None:
    net = Module(path=f"{MODULES}.Remembering", arguments={"kind": kind})
    nets = {"net": MLP(hidden=[4]), "method": FML(meme=net)} if further else {"net": net}
    with refused(BadCode, "net"):
        small(tmp_path / "run", **SETTINGS, **nets, data=VECTORS).run()
    assert not (tmp_path / "run").exists()


def test_texts_are_learned(tmp_path: Path) -> None:
    """The class is the last token plus one."""
    settings = SETTINGS | {"rounds": 12, "net": TokenMLP(embedding=8, hidden=32), "participation": 1.0}
    small(tmp_path / "run", **settings, data=TEXTS).run()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["headline"]["figure"] > 0.95


def test_a_classifier_of_torchvision(tmp_path: Path) -> None:
    """With a method that keeps the head, and read back from the checkpoint."""
    net = Module(path=VISION, arguments=SIZES)
    small(tmp_path / "run", **SETTINGS | {"clients": 2}, net=net, data=IMAGES, method=FedPer()).run()
    models = load_models(tmp_path / "run")
    x, _ = models.batch(0)
    z = models.features(0, x)["personal"]
    assert z.shape == (len(x), SIZES["hidden_dim"])


@pytest.mark.parametrize(
    ("net", "data", "message"),
    [
        (TokenMLP(), VECTORS, r"takes token ids.* have inputs of shape \(30,\)"),
        (MLP(), TEXTS, r"takes numbers, and the data have token ids of shape \(6,\)"),
        (TokenMLP(vocabulary=4), TEXTS, "knows the token ids 0 to 3, and the data have 4"),
        (GROUPED, TEXTS, r"does not work for .* and token ids of shape \(6,\)"),
        (
            Module(path=VISION, arguments=SIZES | {"image_size": 8}),
            IMAGES,
            r"VisionTransf.* does not work for .* and inputs of shape \(3, 16, 16\).* Wrong image height",
        ),
        (odd("reentrant"), VECTORS, r"reentrant.* does not work for .*Error: .*use_reentrant"),
        (f"{MODULES}.hooked_too_late", VECTORS, r"'head\.bias' of the net has a hook of register_post"),
    ],
    ids=["vectors", "texts", "vocabulary", "module", "torchvision", "checkpoint", "hook"],
)
def test_what_does_not_fit_is_refused_in_one_line(
    tmp_path: Path, net: Any, data: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def run() -> None:
        small(tmp_path / "run", **SETTINGS, net=net, data=data, method=FedAvg()).run()

    assert exit_code(run) == 2
    assert re.match(f"rayfl: error: .*{message}", capsys.readouterr().err)
    assert not (tmp_path / "run").exists()
