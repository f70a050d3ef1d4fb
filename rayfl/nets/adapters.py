"""Low-rank adapters around linear layers whose own weights are frozen."""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rayfl.errors import BadCode, Conflict, Unknown
from rayfl.nets.split import SplitNet
from rayfl.system.text import did_you_mean, fits_pattern

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class LoRALinear(nn.Module):
    """A frozen linear layer plus ``scale B A x`` (Hu et al., "LoRA", ICLR 2022, Section 4.1); B starts at 0.

    Args:
        base: the layer, [B, ..., inputs] to [B, ..., outputs].
        rank: rows of A [rank, inputs] and columns of B [outputs, rank].
        scale: alpha / rank.
        train_a: whether A is trained.
    """

    def __init__(self, base: nn.Linear, rank: int, scale: float, train_a: bool = True) -> None:
        super().__init__()
        self.base, self.scale = base, scale
        self.A = nn.Parameter(torch.empty(rank, base.in_features), requires_grad=train_a)
        self.B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """Return what the layer and its adapter put out."""
        put_out: Tensor = self.base(x) + self.scale * F.linear(F.linear(x, self.A), self.B)
        return put_out

    def merge(self) -> nn.Linear:
        """Return one linear layer that does the same."""
        layer = copy.deepcopy(self.base)
        layer.weight.data = (layer.weight + self.scale * self.B @ self.A).detach()
        return layer


def put_adapters(
    net: SplitNet, rank: int, alpha: float, targets: Sequence[str] | None = None, train_a: bool = True
) -> SplitNet:
    """Freeze a net but for its head, and put adapters around linear layers.

    Args:
        net: the net, which is changed.
        rank: of the adapters.
        alpha: adapters are multiplied by ``alpha / rank``.
        targets: names of the layers, also their ends, or patterns; all linear layers by default.
        train_a: whether A is trained.
    """
    net.requires_grad_(False)
    net.head.requires_grad_(True)
    modules = dict(net.named_modules(remove_duplicate=False))  # a layer may have several names
    linear = {n: m for n, m in modules.items() if isinstance(m, nn.Linear) and m is not net.head}
    net.frozen_layers = frozenset(n for n, m in net.named_modules() if m._buffers and m is not net.head)
    chosen: list[str] = []
    for target in targets or ("*",):
        found = [name for name in linear if fits_pattern(name, target)]
        if not found:
            near = did_you_mean(target, [name.rpartition(".")[2] for name in linear])
            problem = f"has {target!r}, and the net has no such linear layer below its head{near}"
            raise Unknown("net.targets", problem, f"There are {', '.join(linear) or 'none'}")
        chosen += found
    adapters: dict[nn.Linear, LoRALinear] = {}
    for name in dict.fromkeys(chosen):
        above = net.get_submodule(name.rpartition(".")[0])
        if type(above).__module__.startswith("torch.nn.") and not isinstance(above, _CONTAINERS):
            raise BadCode(
                "net.targets",
                f"have {name!r}, whose weight {type(above).__name__} reads by itself, past any adapter",
                "name other layers, or write that module with nn.Linear and F.scaled_dot_product_attention",
            )
        layer = linear[name]
        if "weight" not in layer._parameters:
            problem = f"have {name!r}, whose weight is computed, as by weight_norm"
            raise BadCode("net.targets", problem, "name other layers")
        if layer not in adapters:
            adapters[layer] = LoRALinear(layer, rank, alpha / rank, train_a)
    for name, layer in linear.items():
        if layer in adapters:
            net.set_submodule(name, adapters[layer])
    return net


def merge_adapters(module: nn.Module) -> nn.Module:
    """Return a module in which linear layers have taken up their adapters; it has the names of the base."""
    merged: dict[nn.Module, nn.Linear] = {}
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        if isinstance(layer, LoRALinear):
            merged.setdefault(layer, layer.merge())
            module.set_submodule(name, merged[layer])
    if not merged:
        raise Conflict("--merged", "is given, and the view is no single net with adapters", "leave it out")
    return module
