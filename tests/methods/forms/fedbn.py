"""FedBN: Li et al., ICLR 2021, Algorithm 1."""

from functools import partial

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from tests.methods.forms.partial import average_part
from tests.methods.forms.world import Outcome, World


def batchnorm_names(net: nn.Module, bn_personal: str) -> set[str]:
    """Return the names of what stays with a client: all of BatchNorm, or its weights and biases alone."""
    return {
        f"{place}.{name}"
        for place, layer in net.named_modules()
        if isinstance(layer, _BatchNorm)
        for name in (layer.state_dict() if bn_personal == "all" else dict(layer.named_parameters()))
    }


def run(world: World, *, bn_personal: str = "all") -> Outcome:
    """Average all but BatchNorm."""
    return average_part(world, partial(batchnorm_names, bn_personal=bn_personal))
