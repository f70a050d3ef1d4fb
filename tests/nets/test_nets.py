import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from rayfl.errors import BadCode, Conflict, Unknown
from rayfl.nets import (
    CNNB,
    CUTS,
    DSECNN,
    MLP,
    MOONCNN,
    NETS,
    AlexNet,
    Architecture,
    CharLSTM,
    DenseNet121,
    DigitModel,
    DSEViT,
    EfficientNetB0,
    FDSEAlexNet,
    FedAvgCNN,
    FedGHCNN,
    ImageArchitecture,
    LeNet,
    MobileNetV2,
    PFLResearchCNN,
    ResNet18,
    ResNet50,
    SplitNet,
    TokenArchitecture,
    TokenMLP,
    ViT,
    build,
)
from rayfl.nets.backbones import Backbone
from rayfl.nets.split import drop_batch_counts
from tests.support.refusals import refused

MODULE = "a_users_own_nets"


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("kind", "side", "count"),
    [
        (FDSEAlexNet(act="none", padding="code"), 256, 6_508_010),
        (DSECNN(), 28, 230_298),
        (ResNet50(), 256, 25_557_032 - 2049 * 990),
        (DenseNet121(stem="original"), 32, 7_978_856 - 1025 * 990),
    ],
)
def test_parameter_counts_are_those_of_the_papers(kind: Architecture, side: int, count: int) -> None:
    """Of sizes and options that the documentation leaves out."""
    with torch.device("meta"):  # counting needs no memory
        assert parameters(build(kind, (3, side, side), 10)) == count


def test_parts_follow_one_another() -> None:
    """Entries are floats and named after the parts; training renews the running statistics."""
    net = build(CNNB(), (3, 16, 16), 7)
    before = {key: value.clone() for key, value in net.named_buffers()}
    x = torch.randn(4, 3, 16, 16)
    net(x)
    assert before
    assert all(not torch.equal(value, before[key]) for key, value in net.named_buffers())
    flat, features = net.eval().conv(x), net.features(x)
    assert flat.dim() == 2
    assert torch.equal(features, net.fc(flat))
    assert torch.equal(net(x), net.head(features))
    entries = net.state_dict()
    assert {v.dtype for v in entries.values()} == {torch.float32}
    assert {entry.partition(".")[0] for entry in entries} == {"conv", "fc", "head"}
    assert CUTS == {"last_layer": ("head",), "fc_stack": ("fc", "head")}


LEAST = {
    LeNet(): 16,
    CNNB(): 16,
    DigitModel(): 4,
    FedAvgCNN(): 16,
    PFLResearchCNN(): 6,
    FedGHCNN(number=2): 16,
    ResNet18(): 1,
    ResNet18(stem="original"): 1,
    MobileNetV2(): 1,
    EfficientNetB0(): 1,
    AlexNet(width=1024): 63,
    DSECNN(): 4,
}
"""The smallest side of an image that nets take."""


@pytest.mark.parametrize("kind", LEAST)
def test_sizes_follow_from_the_image_and_smaller_ones_are_refused(kind: Architecture) -> None:
    least = LEAST[kind]
    with torch.device("meta"):
        for shape in ((1, least, least + 3), (4, least + 8, least)):
            assert build(kind, shape, 3).eval()(torch.zeros(2, *shape)).shape == (2, 3)
        for shape in ((3, least - 1, 40), (3, 40, least - 1)) if least > 1 else ():
            with refused(Conflict, "net") as caught:
                build(kind, shape, 10)
            assert f"{least}x{least}" in str(caught.value)


BACKBONES = (ResNet18(), MobileNetV2(), EfficientNetB0(), DenseNet121())


@pytest.mark.parametrize(
    "kind",
    [
        *(CNNB(), DSECNN(G=3), ViT(patch=8, depth=1), DSEViT(patch=8, depth=2)),
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in BACKBONES),
    ],
)
def test_training_under_vmap_is_training_one_by_one(kind: Architecture) -> None:
    """Losses, gradients and running statistics of two nets on their own images."""
    nets = [build(kind, (3, 16, 16), 3).double() for _ in range(2)]
    x = torch.randn(2, 6, 3, 16, 16, dtype=torch.float64)
    weights, buffers = stack_module_state(nets)
    buffers = {entry: b.clone() for entry, b in buffers.items()}

    def loss(w: dict[str, Tensor], b: dict[str, Tensor], x: Tensor) -> Tensor:
        scores: Tensor = functional_call(nets[0], {**w, **b}, (x,))
        return scores.square().mean()

    together = vmap(loss)(weights, buffers, x)
    gradients = torch.autograd.grad(together.sum(), list(weights.values()))
    for k, net in enumerate(nets):
        alone = net(x[k]).square().mean()
        torch.testing.assert_close(together[k], alone, rtol=1e-9, atol=0)
        found = torch.autograd.grad(alone, list(net.parameters()))
        size = max(g.abs().max() for g in found)
        rtol, atol = (1e-7, 1e-9 * size) if isinstance(kind, Backbone) else (1e-9, 1e-12)
        for entry, g, one in zip(weights, gradients, found, strict=True):
            torch.testing.assert_close(g[k], one, rtol=rtol, atol=atol, msg=entry)
        for entry, b in net.named_buffers():
            torch.testing.assert_close(buffers[entry][k], b, rtol=1e-9, atol=1e-12, msg=entry)


def test_plain_average_statistics_are_refused() -> None:
    with refused(BadCode, "layer '1'"):
        drop_batch_counts(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, momentum=None)))
    drop_batch_counts(nn.Sequential(nn.BatchNorm1d(2, momentum=None, track_running_stats=False)))


@pytest.mark.parametrize(
    ("wrong", "meant"), [("lenet", "LeNet"), ("resnet-18", "ResNet18"), ("CNN-B", "CNNB")]
)
def test_unknown_name_lists_the_nets_and_suggests_one(wrong: str, meant: str) -> None:
    with refused(Unknown, "net") as caught:
        build(wrong)
    assert f"did you mean {meant}?" in str(caught.value)
    assert all(name in str(caught.value) for name in NETS)


@pytest.mark.parametrize(
    ("like", "named"),
    [
        (torch.zeros(2, 3, 32), "inputs of shape (3, 32)"),
        (torch.full((2, 3, 32, 32), 6), "token ids of shape (3, 32, 32) up to 6"),
    ],
    ids=["3x32", "ids"],
)
def test_nets_for_images_take_nothing_else(like: Tensor, named: str) -> None:
    with refused(Conflict, "net") as caught:
        build(LeNet(), tuple(like.shape[1:]), 10, like)
    assert named in str(caught.value)


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, module)
    return module


def tiny(shape: tuple[int, int, int], classes: int) -> SplitNet:
    size = shape[0] * shape[1] * shape[2]
    conv = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(size))
    return SplitNet(conv, nn.Sequential(nn.Linear(size, 4), nn.BatchNorm1d(4)), nn.Linear(4, classes))


def test_a_users_own_net(users: types.ModuleType) -> None:
    users.tiny = tiny  # type: ignore[attr-defined]
    net = build(f"{MODULE}.tiny", (1, 2, 2), 3)
    assert net.training
    assert torch.equal(net.get_buffer("conv.1.running_var"), torch.ones(4))  # looking did not train it
    assert net(torch.zeros(5, 1, 2, 2)).shape == (5, 3)
    assert "conv.1.num_batches_tracked" not in net.state_dict()


def test_a_users_net_takes_token_ids_up_to_a_number(users: types.ModuleType) -> None:
    users.net = lambda shape, classes: SplitNet(  # type: ignore[attr-defined]
        nn.Sequential(nn.Embedding(5, 3), nn.Flatten()), nn.Sequential(), nn.Linear(3 * shape[0], classes)
    )
    assert build(f"{MODULE}.net", (4,), 7, torch.full((2, 4), 4)).head.in_features == 12
    with refused(BadCode, "net"):
        build(f"{MODULE}.net", (4,), 7, torch.full((2, 4), 5))
    with refused(BadCode, "net"):
        build(f"{MODULE}.net", (4,), 7)


def test_a_small_net_imports_neither_torchvision_nor_the_compiler() -> None:
    """Every actor pays for what is imported."""
    not_there = "assert not {'torchvision', 'torch._dynamo', 'sympy'} & sys.modules.keys()"
    code = f"import sys; from rayfl.nets import *; build(LeNet()); {not_there}"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "kind",
    [
        *(cls() for cls in NETS.values() if issubclass(cls, ImageArchitecture)),
        *(MLP(), MLP(hidden=[200, 200]), TokenMLP(), CharLSTM()),
        *(FedGHCNN(number=2), FedGHCNN(number=3), FedGHCNN(number=4), FedGHCNN(number=5)),
        *(DigitModel(fc_norm=False), AlexNet(fc_norm=False), AlexNet(width=1024), ResNet18(stem="original")),
    ],
    ids=str,
)
def test_every_net_is_in_the_documentation(kind: Architecture) -> None:
    """With the number of its parameters, for the size of images that the page says."""
    page = (Path(__file__).parents[2] / "docs" / "nets.md").read_text()
    large = any(part in str(kind) for part in ("AlexNet", "ViT"))
    side = 256 if large else 28 if isinstance(kind, DigitModel) else 32
    with torch.device("meta"):
        texts = isinstance(kind, TokenArchitecture)
        tokens = torch.zeros(2, 80, dtype=torch.int64)
        net = build(kind, (80,), 80, tokens) if texts else build(kind, (3, side, side), 10)
    name, _, options = str(kind).removesuffix(")").partition("(")
    changed = "".join(f", `{key}` {value}" for key, value in re.findall(r"(\w+)=(\(.*\)|\w+)", options))
    assert f"| `{name}`{changed} | {parameters(net):,} | {net.head.in_features} |" in page


def test_texts_name_functions_only() -> None:
    """Python has the nets themselves, so that there is one way to say an option."""
    with refused(Unknown, "net") as caught:
        build("LeNet")
    assert "LeNet()" in str(caught.value)
    with refused(BadCode, "net"):
        build("rayfl.nets.LeNet")


def test_the_net_of_moon() -> None:
    """The projection head stands between LeNet's hidden layers and the head, and ends without a ReLU."""
    net = build(MOONCNN(features=32))
    widths = [(m.in_features, m.out_features) for m in net.fc.children() if isinstance(m, nn.Linear)]
    assert widths == [(400, 120), (120, 84), (84, 84), (84, 32)]
    assert [type(m) for m in net.fc.children()][4:] == [nn.Linear, nn.ReLU, nn.Linear]
    assert (net.head.in_features, net.head.out_features) == (32, 10)


def test_the_net_of_pfl_research() -> None:
    net = build(PFLResearchCNN())
    assert [layer.p for layer in net.modules() if isinstance(layer, nn.Dropout)] == [0.25, 0.5]
    assert net.conv(torch.zeros(1, 3, 32, 32)).shape == (1, 12_544)
    for weight, units in (("conv.0.weight", 27 + 9 * 32), ("fc.0.weight", 12_544 + 128)):
        limit = (6 / units) ** 0.5  # Glorot and Bengio's: inputs and outputs of a unit
        assert 0.99 * limit < net.get_parameter(weight).abs().max() <= limit


@pytest.mark.parametrize("name", ["MOONCNN", "FedFACNN", "FedFAAlexNet", "FedSRCNN", "FedSRAlexNet"])
def test_a_net_that_begins_like_another_has_its_own_name(name: str) -> None:
    with refused(Conflict, "net") as caught, torch.device("meta"):
        build(NETS[name](), (3, 8, 8), 10)
    assert name in str(caught.value)
