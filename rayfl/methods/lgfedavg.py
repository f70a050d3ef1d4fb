"""LG-FedAvg."""

from __future__ import annotations

from typing import Annotated

from torch import nn

from rayfl.methods.base import Facts
from rayfl.methods.partly_personal import PartlyPersonal
from rayfl.settings import at_least
from rayfl.training import Context, State
from rayfl.training.net import Net


class LGFedAvg(PartlyPersonal):
    """Local representations, a global head (Liang et al., arXiv 2001.01523, 2020).

    The opposite of FedPer: the last layers are averaged, the extractor stays with the client. So extractors
    may have different architectures, as long as the shared layers have the same shapes.

    Deviations from the paper: extractors start from common weights. Its supervised form alone, without the
    auxiliary losses on local representations. BatchNorm statistics are never shared.
    """

    facts = Facts(nets="equal_features")

    p: Annotated[int, at_least(1)] = 2
    """Number of parameter tensors that are shared, counted from the end of the net: 2 are weight and bias of
    the last linear layer.
    """

    def state_for_new_clients(self, context: Context, state: State) -> State:
        """New clients start from the mean of the extractors, which different ones have not."""
        return {} if context.nets_differ else state

    def shared(self, net: Net, name: str, module: nn.Module) -> bool:
        """Share the last layers."""
        parameters = [entry for entry in net.modules_of if entry in net.train_names]
        return name in parameters[-self.p :]
