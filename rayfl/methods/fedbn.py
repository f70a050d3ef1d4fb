"""FedBN."""

from __future__ import annotations

from typing import Annotated, Literal

from torch import nn

from rayfl.methods.partly_personal import PartlyPersonal
from rayfl.settings import at_least
from rayfl.training import Client, Params, State
from rayfl.training.net import Net, is_batch_norm

BatchNormPart = Literal["all", "affine_only"]
"""What of a BatchNorm layer is personal: weight, bias and running statistics, or only weight and bias."""


def in_batch_norm(name: str, module: nn.Module, part: BatchNormPart) -> bool:
    """Return whether an entry belongs to a BatchNorm layer, and to the given part of it."""
    statistics = name.endswith(("running_mean", "running_var"))
    return is_batch_norm(module) and not (part == "affine_only" and statistics)


class FedBN(PartlyPersonal):
    """FedAvg with personal BatchNorm layers (Li et al., ICLR 2021).

    Batch normalisation absorbs the differences of the clients' images, so its layers stay with the clients
    and everything else is averaged. On a net without BatchNorm this is FedAvg.

    Deviations from the paper: none.
    """

    bn_personal: BatchNormPart = "all"
    """``all`` keeps weight, bias and running statistics of BatchNorm with the client; ``affine_only``
    averages the running statistics, as the label-skew experiments of Fed-CO2's public code do.
    """
    unseen_passes: Annotated[int, at_least(1)] = 1
    """Passes over the images of an unseen domain to which running statistics are adapted."""

    def shared(self, net: Net, name: str, module: nn.Module) -> bool:
        """Share everything but BatchNorm, recognised by the layer's type."""
        return not in_batch_norm(name, module, self.bn_personal)

    async def adapt(self, client: Client, state: State, down: State, moves: bool) -> State:
        """Renew the running statistics by the images; no parameter moves."""
        w: Params = down["weights"].merge(state["own"])
        renewed = await client.renew_statistics(w, self.unseen_passes)
        modules = client.net.modules_of
        return {"own": renewed.select(lambda name: in_batch_norm(name, modules[name], "all"))}
