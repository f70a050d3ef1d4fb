"""Frozen weights: held once per process, in no state, and the same everywhere."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rayfl import Federation, Inline, Result, load_models, resumed
from rayfl.commands.export import export
from rayfl.data import Synthetic
from rayfl.engine.set_up import set_up
from rayfl.errors import Conflict
from rayfl.methods import METHODS, FedAvg
from rayfl.nets import SplitNet
from rayfl.report.compare import machine_warnings
from rayfl.training import Batch, Net
from tests.support.federations import INLINE_AND_RAY, records_of, same_bytes, small
from tests.support.refusals import refused

SHAPE = (3, 12, 12)
DATA = Synthetic(train=160, test=60, shape=SHAPE, classes=4)


class Body(nn.Module):
    """A convolution whose weights are frozen, or constants; both are drawn alike."""

    def __init__(self, constant: bool) -> None:
        super().__init__()
        drawn = nn.Conv2d(3, 6, 3)
        for name, tensor in drawn.named_parameters():
            if constant:
                self.register_buffer(name, tensor.detach(), persistent=False)
            else:
                self.register_parameter(name, nn.Parameter(tensor.detach(), requires_grad=False))

    def forward(self, x: Tensor) -> Tensor:
        """Return features, [B, 150]."""
        return nn.functional.conv2d(x, self.weight, self.bias, stride=2).flatten(1)


class Frozen(nn.Module):
    """A frozen body below two layers that are trained."""

    constant = False

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.body = Body(self.constant)
        self.middle = nn.Linear(150, 8)
        self.last = nn.Linear(8, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, [B, classes]."""
        return self.last(self.middle(self.body(x)).relu())


class Constant(Frozen):
    """The same function, whose body PyTorch keeps out of its states by itself."""

    constant = True


class Normed(nn.Module):
    """A frozen body with BatchNorm, one of them without parameters, from a file where there is one."""

    file: Path | None = None

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        parts = nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.BatchNorm2d(6, affine=False), nn.Flatten()
        self.body = nn.Sequential(*parts).requires_grad_(False)
        if self.file is not None:
            self.body.load_state_dict(load_file(self.file))
        self.norm = nn.BatchNorm1d(150)
        self.last = nn.Linear(150, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, [B, classes]."""
        return self.last(self.norm(self.body(x)))


class HeadFrozen(Frozen):
    """The last layer is frozen besides."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(shape, num_classes)
        self.last.requires_grad_(False)


def frozen(output: Path, net: type[nn.Module] = Frozen, **changes: Any) -> Federation:
    """A small federation with a net of this module."""
    settings = {"data": DATA, "net": f"{__name__}.{net.__name__}", "clients": 4, "participation": 1.0}
    return small(output, **settings | {"rounds": 2} | changes)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two files of weights for ``Normed``, which reads the first."""
    found = [tmp_path / f"{seed}.safetensors" for seed in (0, 1)]
    for seed, file in enumerate(found):
        torch.manual_seed(seed)
        save_file(Normed((3, 12, 12), 4).body.state_dict(), file)
    monkeypatch.setattr(Normed, "file", found[0])
    return found


@pytest.mark.parametrize("execution", ["loop", "stacked"])
@pytest.mark.parametrize("method", ["FedAvg", "Ditto", "FedCO2", "SCAFFOLD", "FedProto"])
def test_frozen_weights_give_the_numbers_of_constants(method: str, execution: str, tmp_path: Path) -> None:
    """Also with noise on what is sent, optimisers that remember, and weights that are compared."""
    settings = {"method": METHODS[method](), "engine": Inline(execution=execution)}
    for net in (Frozen, Constant):
        frozen(tmp_path / net.__name__, net, **settings).run()
    assert records_of(tmp_path / "Frozen") == records_of(tmp_path / "Constant")


def test_frozen_weights_are_no_entries(tmp_path: Path) -> None:
    result = frozen(tmp_path, method=METHODS["Ditto"]()).run()
    own = 150 * 8 + 8 + 8 * 4 + 4
    assert result.summary["up"] == 2 * 4 * 4 * own
    models = load_models(tmp_path)
    assert {*models.state(0)["own"]} == {*models.server["weights"]}
    assert sum(t.numel() for t in models.server["weights"].values()) == own
    body = [load_models(tmp_path)[k].module().body.weight for k in (0, 1)]
    assert torch.equal(*body)
    export(tmp_path, 1, tmp_path / "model.safetensors")
    written, x = load_file(tmp_path / "model.safetensors"), models.batch(1)[0]
    plain = Frozen(SHAPE, 4)
    plain.load_state_dict(written)
    torch.testing.assert_close(plain(x), models.scores(1, x)["personal"])


def test_processes_hold_the_same_and_runs_go_on(tmp_path: Path) -> None:
    settings = {"method": METHODS["Ditto"](), "rounds": 2, "checkpoint_every": 1, "net": Normed}
    same_bytes(tmp_path, *INLINE_AND_RAY, resumed_after=1, make=frozen, **settings)


def test_statistics_of_what_is_frozen_do_not_move(tmp_path: Path) -> None:
    net = Net(lambda: _split(Normed(SHAPE, 4)))
    assert set(net.initial(0)) == {
        *("conv.norm.weight", "conv.norm.bias", "conv.norm.running_mean", "conv.norm.running_var"),
        *("head.weight", "head.bias"),
    }
    before, digest = {n: t.clone() for n, t in net.frozen.items()}, net.frozen_digest()
    assert {n.removeprefix("conv.body.") for n in before} == {
        *("0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"),
        *("2.running_mean", "2.running_var"),
    }
    w = net.initial(0)
    live = type(w)({n: t.clone() for n, t in w.items()}, w.train_names, live=True)
    x = torch.randn(8, *SHAPE)
    twice = net(live, x)
    assert not torch.equal(live["conv.norm.running_mean"], w["conv.norm.running_mean"])
    assert all(torch.equal(t, before[n]) for n, t in net.frozen.items())
    assert (net.frozen_digest(), twice.requires_grad) == (digest, False)
    for path, tensor in net.frozen.items():  # both twins, and other weights, compute with the same memory
        above, _, own = path.rpartition(".")
        assert getattr(net.eval.module.get_submodule(above), own) is tensor
    assert net.frozen_digest() == Net(lambda: _split(Normed(SHAPE, 4))).frozen_digest()
    assert net.frozen_digest() != Net(lambda: _split(Normed(SHAPE, 4)), seed=1).frozen_digest()
    assert Net(lambda: _split(nn.Sequential(nn.Flatten(), nn.Linear(432, 4)))).frozen_digest() is None


def test_a_frozen_batch_norm_takes_batches_of_one(tmp_path: Path) -> None:
    class Alone(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(*Normed(SHAPE, 4).body, nn.Linear(150, 4))

    net = Net(lambda: _split(Alone()))
    assert not net.has_batch_norm
    w = net.initial(0)
    torch.testing.assert_close(net(w, torch.ones(1, *SHAPE)), net.eval(w, torch.ones(1, *SHAPE)))


def _split(module: nn.Module) -> SplitNet:
    from rayfl.nets.head import split_at_head

    return split_at_head(module, "net", 4, torch.rand(2, *SHAPE))


def test_other_frozen_weights_are_found(files: list[Path], tmp_path: Path, monkeypatch: Any) -> None:
    """By a run that goes on, by models that are read, by processes that start, and in tables."""
    run, other = frozen(tmp_path / "run", Normed, rounds=1), tmp_path / "other"
    run.run()
    recorded = json.loads((tmp_path / "run" / "environment.json").read_text())["code"]["frozen weights"]
    plan = dataclasses.replace(run.plan(), frozen=recorded)
    set_up(plan, run.federated_data())
    frozen(tmp_path / "same", Normed, rounds=1, method=METHODS["Ditto"]()).run()
    monkeypatch.setattr(Normed, "file", files[1])
    with refused(Conflict, "net"):
        set_up(plan, run.federated_data())
    with refused(Conflict, "net"):
        load_models(tmp_path / "run")
    with refused(Conflict, tmp_path / "run"):
        resumed(tmp_path / "run", {"rounds": 2}).run()
    frozen(other, Normed, rounds=1, method=METHODS["Ditto"]()).run()
    runs = [Result.load(each) for each in (tmp_path / "run", tmp_path / "same", other)]
    assert machine_warnings(runs[:1], runs[:2]) == []
    (text,) = machine_warnings(runs[:1], [runs[0], runs[2]])
    assert "frozen weights" in text


def test_a_method_that_keeps_nothing_because_its_head_is_frozen_says_so(tmp_path: Path, capsys: Any) -> None:
    net = frozen(tmp_path, HeadFrozen, method=METHODS["FedPer"]())
    (warning,), digest = net.check(net.federated_data())
    assert "FedPer" in warning
    assert digest


def test_losses_reach_what_lies_below_frozen_layers() -> None:
    net = Net(lambda: _split(HeadFrozen(SHAPE, 4)), dtype=torch.float64)
    w = net.initial(0).map(lambda t: t.requires_grad_())
    x, y = torch.rand(5, *SHAPE, dtype=torch.float64), torch.arange(5) % 4
    batch = Batch(x, y, torch.zeros((), dtype=torch.int64))
    loss = nn.functional.cross_entropy(net(w, batch.x), batch.y)
    found = dict(zip(w, torch.autograd.grad(loss, [*w.values()]), strict=True))
    assert {n for n, g in found.items() if g.abs().sum() > 0} == {"conv.middle.weight", "conv.middle.bias"}


def test_the_default_is_a_net_without_frozen_weights(tmp_path: Path) -> None:
    result = small(tmp_path, method=FedAvg(), rounds=1).run()
    assert "frozen weights" not in json.loads((tmp_path / "environment.json").read_text())["code"]
    assert "frozen weights" not in result.machine


def test_hooks_on_frozen_parameters_and_layers_that_train_alone() -> None:
    def hooked() -> SplitNet:
        module = Normed(SHAPE, 4).requires_grad_(True)
        module.body[0].weight.register_hook(lambda g: g)
        module.body.requires_grad_(False)
        return _split(module)

    net, x = Net(hooked), torch.rand(4, *SHAPE)
    w = net.initial(0).map(lambda t: t.requires_grad_())
    twin = net.training_only(["conv.body.1", "conv.norm"])
    before = net.frozen_digest()
    live = type(w)({n: t.detach().clone() for n, t in w.items()}, w.train_names, live=True)
    twin(live, x)
    assert net.frozen_digest() == before
