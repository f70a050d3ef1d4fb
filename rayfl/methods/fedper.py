"""FedPer."""

from __future__ import annotations

from torch import nn

from rayfl.methods.partly_personal import PartlyPersonal
from rayfl.training.net import Cut, Net


class FedPer(PartlyPersonal):
    """FedAvg with personal classifiers (Arivazhagan et al., "Federated learning with personalization layers",
    arXiv 1912.00818, 2019).

    The first layers (base layers) are averaged, the last ones (personalisation layers) stay with the client.

    Deviations from the paper: personalisation layers start from common instead of each client's own random
    weights; all layers are trained together by SGD, as in its Algorithm 1.
    """

    personal: Cut = "last_layer"
    """``last_layer`` keeps the last linear layer with the client; ``fc_stack`` everything after the flatten,
    with its BatchNorm layers.
    """

    def shared(self, net: Net, name: str, module: nn.Module) -> bool:
        """Share the base layers."""
        return name not in net.names(self.personal, "head")
