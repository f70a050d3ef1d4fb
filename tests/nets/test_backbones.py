"""MobileNetV2, EfficientNet-B0, DenseNet121 and ResNet18: torchvision's nets in parts, from its weights."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from rayfl.errors import Conflict, Damaged, Missing
from rayfl.nets import Architecture, DenseNet121, EfficientNetB0, MobileNetV2, ResNet18, build
from rayfl.nets.backbones import Backbone
from tests.support.refusals import refused

MADE = {
    MobileNetV2(): ("mobilenet_v2", "MobileNet_V2_Weights"),
    EfficientNetB0(): ("efficientnet_b0", "EfficientNet_B0_Weights"),
    DenseNet121(): ("densenet121", "DenseNet121_Weights"),
    ResNet18(stem="original"): ("resnet18", "ResNet18_Weights"),
}
"""What torchvision calls nets and their weights."""


def file_of(kind: Backbone) -> str:
    """Name the file of a net's weights."""
    import torchvision.models as zoo

    return Path(getattr(zoo, MADE[kind][1]).IMAGENET1K_V1.url).name


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder where torchvision's weights are looked for."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


def with_old_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Name entries as in torchvision's file of DenseNet121, which is older than its code."""
    for part in ("norm", "conv"):
        for number in "12":
            state = {n.replace(f".{part}{number}.", f".{part}.{number}."): t for n, t in state.items()}
    return {n: t for n, t in state.items() if not n.endswith("num_batches_tracked")}


@pytest.mark.parametrize("kind", MADE)
def test_pretrained_nets_compute_what_torchvisions_do(kind: Backbone, checkpoints: Path) -> None:
    """Weights made up by a seed, running statistics too; the file also has a head of 1,000 classes."""
    import torchvision.models as zoo

    torch.manual_seed(1)
    theirs = getattr(zoo, MADE[kind][0])().eval()
    for entry, buffer in theirs.named_buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5) if entry.endswith("var") else buffer.normal_(0, 0.1)
    state = theirs.state_dict()
    torch.save(with_old_names(state) if kind == DenseNet121() else state, checkpoints / file_of(kind))
    net = build(replace(kind, pretrained=True), (3, 40, 40), 7).eval()
    x = torch.randn(2, 3, 40, 40)
    head = theirs.fc if isinstance(kind, ResNet18) else theirs.classifier
    if isinstance(head, nn.Sequential):
        head = head[-1]
    head.weight.data, head.bias.data = net.head.weight.data, net.head.bias.data
    with torch.no_grad():
        torch.testing.assert_close(net(x), theirs(x), rtol=1e-5, atol=1e-5)


def test_without_the_file_it_says_where_to_put_it(checkpoints: Path) -> None:
    with refused(Missing, checkpoints / file_of(MobileNetV2())) as caught:
        build(MobileNetV2(pretrained=True))
    assert "TORCH_HOME" in str(caught.value)
    with refused(Conflict, "net"):
        DenseNet121(stem="small", pretrained=True)


class Program:
    """What a file must not be able to do when it is read."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return pytest.fail, ("a file of weights ran a program",)


@pytest.mark.parametrize(
    "content",
    [
        Program(),
        b"",
        b"not a file of weights",
        {"features.0.0.weight": torch.zeros(1)},
        {"features.0.0.weight": torch.zeros(32, 3, 3, 3)},  # of another net
        {"layers.weight": torch.zeros(1)},
    ],
)
def test_a_wrong_file_is_refused(checkpoints: Path, content: object) -> None:
    file = checkpoints / file_of(MobileNetV2())
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    with refused(Damaged, file):
        build(MobileNetV2(pretrained=True))


@pytest.mark.parametrize(
    ("kind", "shape", "word"),
    [(EfficientNetB0(pretrained=True), (1, 32, 32), "3 channels"), (DenseNet121(), (3, 7, 40), "8x8")],
)
def test_images_that_do_not_fit_are_refused(
    kind: Architecture, shape: tuple[int, int, int], word: str, checkpoints: Path
) -> None:
    with refused(Conflict, "net") as caught:
        build(kind, shape, 10)
    assert word in str(caught.value)


@pytest.mark.parametrize(("kind", "factor"), [(MobileNetV2(), 2), (EfficientNetB0(), 2), (DenseNet121(), 4)])
def test_the_small_stem_keeps_small_images_large(kind: Backbone, factor: int) -> None:
    stems = (build(each).conv[0] for each in (kind, replace(kind, stem="original")))
    small, original = (stem(torch.zeros(2, 3, 32, 32)) for stem in stems)
    assert small.shape[2] == factor * original.shape[2]
    assert replace(kind, stem="small").small


@pytest.mark.parametrize("kind", [MobileNetV2(), EfficientNetB0()])
def test_nothing_is_random_but_the_initial_weights(kind: Architecture) -> None:
    """Neither dropout nor stochastic depth: a train-mode call draws nothing, and answers twice alike."""
    net, x = build(kind, (3, 16, 16), 5).train(), torch.randn(4, 3, 16, 16)
    before = torch.get_rng_state()
    first, second = net(x), net(x)
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("kind", "expected"), [(DenseNet121(), 2 / 27), (MobileNetV2(), 2 / 288)])
def test_a_new_first_convolution_is_drawn_as_the_rest_of_the_net(kind: Backbone, expected: float) -> None:
    """By Kaiming's rule: DenseNet by the 3x3x3 numbers that come in, MobileNetV2 by 32x3x3 that go out."""
    torch.manual_seed(0)
    net = build(kind, (3, 32, 32), 10)
    first = next(layer for layer in net.modules() if isinstance(layer, nn.Conv2d))
    assert first.weight.var().item() == pytest.approx(expected, rel=0.15)
