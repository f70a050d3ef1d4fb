"""AlexNets, nets of DSE blocks, ViTs: counts of the papers, the block's equation, sizes, vmap."""

import itertools
from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from rayfl.errors import Conflict
from rayfl.nets import (
    DSECNN,
    Architecture,
    DSEResNet50,
    DSEViT,
    FDSEAlexNet,
    SplitNet,
    ViT,
    build,
    dse_blocks,
)
from rayfl.nets.alexnet import Averages
from rayfl.nets.dse import DSEConv, DSELinear
from tests.support.refusals import refused


def on_paper(kind: Architecture, side: int) -> SplitNet:
    with torch.device("meta"):  # counting needs no memory
        return build(kind, (3, side, side), 10)


def test_where_the_blocks_are() -> None:
    """In ResNet50 the last layer of every block, whose ReLU is the DSE block's."""
    net = on_paper(DSEResNet50(), 256)
    assert len(dse_blocks(net)) == 3 + 4 + 6 + 3
    assert not any(isinstance(block.relu, nn.ReLU) for block in dse_blocks(net).values())
    assert list(dse_blocks(on_paper(DSEViT(), 256))) == [f"conv.block{k}.forth.last" for k in range(1, 7)]
    for padding, late in (("paper", 1), ("code", 0)):
        blocks = list(dse_blocks(on_paper(FDSEAlexNet(padding=padding), 256)).values())
        assert len(blocks) == 7
        assert [block.dfe_conv.padding[0] for block in blocks[:5]] == [2, 2, late, late, late]


def vit(weights: Mapping[str, Tensor], x: Tensor, patch: int, depth: int) -> Tensor:
    """Score images one by one, token by token and head by head, with BatchNorm's running statistics."""

    def normed(name: str, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"])

    def linear(name: str, x: Tensor) -> Tensor:
        return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    found = []
    for image in x:
        corners = itertools.product(range(0, image.shape[1], patch), range(0, image.shape[2], patch))
        cut = [image[:, i : i + patch, j : j + patch].movedim(0, -1).flatten() for i, j in corners]
        embedded = normed("token_norm", linear("embed", normed("patch_norm", torch.stack(cut))))
        tokens = torch.cat([weights["tokens.first"][0], embedded]) + weights["tokens.positions"][0]
        for k in range(1, depth + 1):
            block = f"block{k}"
            asked = linear(f"{block}.attention.inner", normed(f"{block}.attention.norm", tokens))
            queries, keys, values = (part.split(64, dim=1) for part in asked.split(8 * 64, dim=1))
            heads = [(q @ k.T / 8).softmax(1) @ v for q, k, v in zip(queries, keys, values, strict=True)]
            tokens = tokens + linear(f"{block}.attention.outer", torch.cat(heads, 1))
            norm = [weights[f"{block}.forth.norm.{name}"] for name in ("running_mean", "running_var")]
            scale = [weights[f"{block}.forth.norm.{name}"] for name in ("weight", "bias")]
            hidden = F.gelu(F.batch_norm(linear(f"{block}.forth.first", tokens), *norm, *scale))
            tokens = tokens + linear(f"{block}.forth.last", hidden)
        found.append(normed("norm", tokens)[0])
    return torch.stack(found)


def test_vit_is_the_textbooks() -> None:
    net = build(ViT(patch=4, depth=2), (3, 8, 12), 5).double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            if tensor.is_floating_point():  # no weight is 1 and no bias 0
                drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64) / 4
                tensor.copy_(drawn.abs() + 0.5 if name.endswith("running_var") else drawn)
        x = torch.randn(3, 3, 8, 12, generator=generator, dtype=torch.float64)
        torch.testing.assert_close(net.conv(x), vit(net.conv.state_dict(), x, patch=4, depth=2))


# ---- the block


@pytest.mark.parametrize(
    ("outputs", "G", "act"), [(6, 2, "relu"), (7, 3, "relu"), (5, 4, "none"), (2, 3, "none")]
)
def test_a_convolution_taken_apart(outputs: int, G: int, act: str) -> None:
    """Channel j of the derived ones comes from channel j // (G - 1) of the DFE, and of nothing else."""
    a = -(-outputs // G)
    block = DSEConv(3, outputs, 3, 2, 1, G=G, dw=3, act=act).double().eval()  # type: ignore[arg-type]
    x = torch.randn(2, 3, 9, 8, dtype=torch.float64)
    with torch.no_grad():
        block.dfe_bias.normal_()
        block.dse_bn.running_mean.normal_()  # type: ignore[operator, union-attr]
        block.dfe_bn.running_var.uniform_(1, 2)  # type: ignore[operator, union-attr]
        z = block.dse_bn(F.conv2d(x, block.dfe_conv.weight, block.dfe_conv.bias, 2, 1))  # type: ignore[arg-type]
        z = z.relu() if act == "relu" else z
        kernels = block.dse_conv.weight
        derived = [
            F.conv2d(z[:, j // (G - 1), None], kernels[j, None], padding=1)
            for j in range(a * (G - 1))  # type: ignore[index]
        ]
        whole = torch.cat([z, *derived], 1)[:, :outputs] + block.dfe_bias[:, None, None]
        torch.testing.assert_close(block(x), block.dfe_bn(whole).relu())
    assert block(x).shape == (2, outputs, 5, 4)


def test_a_linear_layer_is_a_convolution_of_one_pixel() -> None:
    linear = DSELinear(6, 7, G=3, act="relu").double()
    conv = DSEConv(6, 7, 1, G=3, dw=1, act="relu").double()
    sizes = {name: t.shape for name, t in conv.state_dict().items()}
    state = {name: t.reshape(sizes[name]) for name, t in linear.state_dict().items() if name in sizes}
    conv.load_state_dict(state)
    x = torch.randn(5, 6, dtype=torch.float64)
    torch.testing.assert_close(linear(x), conv(x[..., None, None]).flatten(1))  # in train mode


# ---- sizes and options


def test_patches_must_tile_the_image() -> None:
    assert build(ViT(patch=7, depth=1), (1, 28, 14), 3).eval()(torch.zeros(2, 1, 28, 14)).shape == (2, 3)
    with refused(Conflict, "net"):
        build(ViT(), (3, 28, 42), 10)


def test_options_are_obeyed() -> None:
    net = on_paper(DSECNN(G=4, dw=5, act="none"), 28)
    block = next(iter(dse_blocks(net).values()))
    assert block.dse_conv.weight.shape == (24, 1, 5, 5)
    assert isinstance(block.act, nn.Identity)


# ---- many clients at once


@pytest.mark.parametrize("sides", [(7, 7), (1, 4), (6, 6), (13, 10)])
def test_adaptive_pooling_is_that_of_pytorch(sides: tuple[int, int]) -> None:
    x = torch.randn(3, 2, 4, *sides, dtype=torch.float64)
    together = vmap(grad(lambda x: Averages(6)(x).square().sum()))(x)
    for k, row in enumerate(x):
        torch.testing.assert_close(Averages(6)(row), nn.AdaptiveAvgPool2d(6)(row))
        alone = grad(lambda x: nn.AdaptiveAvgPool2d(6)(x).square().sum())(row)
        torch.testing.assert_close(together[k], alone)
