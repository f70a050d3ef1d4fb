"""Weights from a file, from which all clients start."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rayfl import Federation, Ray, load_models, resumed
from rayfl.commands.export import export
from rayfl.commands.run import run_from
from rayfl.data import Synthetic
from rayfl.engine.set_up import set_up
from rayfl.errors import Conflict, Damaged, Missing, UserError
from rayfl.methods import METHODS
from rayfl.nets import CNNB, MLP, LoRA, Module, build
from rayfl.nets.weights import file_digest
from tests.support.federations import bytes_of_run, small
from tests.support.refusals import refused

SHAPE, CLASSES = (3, 16, 16), 4
DATA = Synthetic(train=120, test=40, shape=SHAPE, classes=CLASSES)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(768, 768), nn.Linear(768, 768)
        self.second.weight = self.first.weight
        self.last = nn.Linear(768, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, [B, classes]."""
        return self.last(self.second(self.first(x.flatten(1)).relu()).relu())


class Viewed(Tied):
    """Two parameters in one memory."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(shape, num_classes)
        self.second.weight = nn.Parameter(self.first.weight.data)


def federation(output: Path, net: object = None, **changes: object) -> Federation:
    """A small federation."""
    return small(output, data=DATA, net=net or CNNB(), clients=3, rounds=1, **changes)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Weights that a run has found."""
    federation(tmp_path / "first").run()
    return export(tmp_path / "first", 0, tmp_path / "weights.safetensors")


def test_a_run_starts_where_another_has_ended(file: Path, tmp_path: Path) -> None:
    run = federation(tmp_path / "next", CNNB(weights=str(file)))
    before, x = load_models(tmp_path / "first"), torch.rand(4, *SHAPE)
    net = build(CNNB(weights=str(file)), SHAPE, CLASSES)
    torch.testing.assert_close(net.eval()(x), before.scores(0, x)["global"])
    run.run()
    ray = federation(tmp_path / "ray", CNNB(weights=str(file)), engine=Ray(actors=2))
    ray.run()
    assert bytes_of_run(tmp_path / "ray", settings=False) == bytes_of_run(tmp_path / "next", settings=False)
    told = ["--net", "CNNB", "--net.weights", str(file)]
    assert run_from(told).settings.net == CNNB(weights=str(file))


def test_another_file_is_another_run(file: Path, tmp_path: Path) -> None:
    net = CNNB(weights=str(file))
    federation(tmp_path / "run", net).run()
    name = f"file {file}"
    recorded = json.loads((tmp_path / "run" / "environment.json").read_text())["code"]
    assert recorded[name] == federation(tmp_path / "run", net).code()[name]
    save_file({n: t + 1 for n, t in load_file(file).items()}, file)
    assert recorded[name] != federation(tmp_path / "run", net).code()[name]
    with refused(Conflict, tmp_path / "run"):
        resumed(tmp_path / "run", {"rounds": 2}).run()
    file.unlink()
    with pytest.raises(UserError):
        federation(tmp_path / "other", net).run()


def test_what_does_not_fit_is_told(file: Path, tmp_path: Path) -> None:
    with refused(Conflict, "net.weights") as caught:
        build(MLP(weights=str(file)), SHAPE, CLASSES)
    assert "in it alone" in str(caught.value) or "in the net alone" in str(caught.value)
    with refused(Conflict, "net.weights") as caught:
        build(CNNB(weights=str(file)), SHAPE, CLASSES + 1)
    assert "head.weight" in str(caught.value)
    with refused(Missing, tmp_path / "none"):
        build(CNNB(weights=str(tmp_path / "none")), SHAPE, CLASSES)
    (tmp_path / "text").write_text("no weights")
    with refused(Damaged, tmp_path / "text"):
        build(CNNB(weights=str(tmp_path / "text")), SHAPE, CLASSES)


@pytest.mark.parametrize("kind", [Tied, Viewed])
def test_modules_of_ones_own_have_their_own_names(tmp_path: Path, kind: type[Tied]) -> None:
    """And weights of one memory stay one, also where they are two parameters."""
    plain, file = kind(SHAPE, CLASSES), tmp_path / "own.safetensors"
    save_file({n: t.clone() for n, t in plain.state_dict().items()}, file)
    net = build(Module(path=f"{__name__}.{kind.__name__}", weights=str(file)), SHAPE, CLASSES)
    x = torch.rand(2, *SHAPE)
    torch.testing.assert_close(net(x), plain(x))
    assert net.get_parameter("conv.first.weight") is net.get_parameter("conv.second.weight")


def test_the_base_of_adapters_has_a_file_of_its_own(file: Path) -> None:
    base = CNNB(weights=str(file))
    net = LoRA(of=base, targets=["fc.*"])
    assert net.digests() == base.digests() == {f"file {file}": file_digest(file)}
    assert LoRA(of="some.net").digests() == CNNB().digests() == {}
    adapted, x = build(net, SHAPE, CLASSES), torch.rand(2, *SHAPE)
    torch.testing.assert_close(adapted.eval()(x), build(base, SHAPE, CLASSES).eval()(x))


def test_a_net_with_adapters_has_its_own_names(tmp_path: Path) -> None:
    federation(tmp_path / "run", LoRA(of=f"{__name__}.Tied", targets=["first"])).run()
    written = export(tmp_path / "run", 0, tmp_path / "b.safetensors")
    again = build(LoRA(of=f"{__name__}.Tied", targets=["first"], weights=str(written)), SHAPE, CLASSES)
    x = torch.rand(2, *SHAPE)
    torch.testing.assert_close(again(x), load_models(tmp_path / "run").scores(0, x)["global"])


def test_nets_with_other_files_are_others(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    save_file({n: t + 1 for n, t in load_file(file).items()}, other)
    nets = [Module(path="rayfl.nets.build_nothing", weights=str(each)) for each in (file, other)]
    assert str(nets[0]) != str(nets[1])
    made = federation(
        tmp_path / "run", [CNNB(weights=str(file)), CNNB(weights=str(other))], method=METHODS["Local"]()
    )
    first, second = set_up(made.plan(), made.federated_data())[0]
    assert not torch.equal(first.initial(0)["head.bias"], second.initial(0)["head.bias"])


def test_processes_that_read_another_file_are_refused(file: Path, tmp_path: Path) -> None:
    made = federation(tmp_path / "run", CNNB(weights=str(file)))
    _, digest = made.check(made.federated_data())
    plan = replace(made.plan(), frozen=digest)
    set_up(plan, made.federated_data())
    save_file({n: t + 1 for n, t in load_file(file).items()}, file)
    with refused(Conflict, "net"):
        set_up(plan, made.federated_data())
