"""FedPer."""

from __future__ import annotations

from typing import cast, get_args

from torch import nn

from rayfl.errors import Unknown
from rayfl.methods.partly_personal import PartlyPersonal
from rayfl.system.text import fits_pattern
from rayfl.training import Context
from rayfl.training.net import Cut, Net


class FedPer(PartlyPersonal):
    """FedAvg with personal classifiers (Arivazhagan et al., "Federated learning with personalization layers",
    arXiv 1912.00818, 2019).

    The first layers (base layers) are averaged, the last ones (personalisation layers) stay with the client.

    Deviations from the paper: personalisation layers start from common instead of each client's own random
    weights; all layers are trained together by SGD, as in its Algorithm 1.
    """

    personal: Cut | list[str] = "last_layer"
    """``last_layer`` keeps the last linear layer with the client; ``fc_stack`` everything after the flatten,
    with its BatchNorm layers; or names of entries, their ends, or patterns: ``[B]`` of a net with adapters is
    FedSA-LoRA (Guo et al., ICLR 2025).
    """

    def prepare(self, context: Context) -> None:
        """Refuse a name that no entry has."""
        for pattern in () if self.personal in get_args(Cut) else self.personal:
            if not any(fits_pattern(name, pattern) for name in context.net.modules_of):
                there = ", ".join(context.net.modules_of)
                raise Unknown(
                    "method.personal", f"has {pattern!r}, which no entry fits", f"There are {there}"
                )

    def shared(self, net: Net, name: str, module: nn.Module) -> bool:
        """Share the base layers."""
        if self.personal in get_args(Cut):
            return name not in net.names(cast(Cut, self.personal), "head")
        return not any(fits_pattern(name, pattern) for pattern in self.personal)
