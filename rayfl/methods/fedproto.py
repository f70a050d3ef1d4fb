"""FedProto."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from rayfl.methods.base import Cohort, Facts
from rayfl.methods.local import Local
from rayfl.methods.prototypes import bytes_of_owned, class_means
from rayfl.settings import at_least
from rayfl.training import Batch, Client, Context, Params, Reduction, State, Sum


class FedProto(Local):
    """Federated prototype learning (Tan et al., AAAI 2022).

    Clients keep their models to themselves and exchange class prototypes: the mean feature (input of the last
    linear layer) of each class. Features are pulled towards the global prototype of their class.

    Deviations from the paper: the loss has the mean squared distance of each sample's feature to the global
    prototype of its class, as in the public code, where eq. 8 has the distance of the local prototypes.
    Global prototypes are means over the owners of a class; eq. 6 as printed divides these once more by the
    number of owners. Local prototypes come from a pass in eval mode after training. A class that nobody in a
    cohort owns keeps its global prototype. Before the first prototype exists, the own head predicts.
    """

    lam: Annotated[float, at_least(0)] = 1.0
    """Weight of the distance to the global prototype, lambda in the paper. With 0 the models are trained
    locally.
    """
    predict: Literal["prototype", "head"] = "prototype"
    """``prototype`` predicts the class of the nearest global prototype, ``head`` the class that the client's
    own head scores highest.
    """
    prototype_weights: Literal["uniform", "counts"] = "uniform"
    """A global prototype is the ``uniform`` mean over the clients that own the class, or weighted by their
    ``counts`` of samples of it.
    """

    @property
    def facts(self) -> Facts:  # type: ignore[override]
        """Features are compared; distances to prototypes are not logits."""
        without_loss = frozenset({"personal"} if self.predict == "prototype" else ())
        return Facts(nets="equal_features", without_loss=without_loss, tasks=("classes",))

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        """Return weighted class means and their weights: a mean over the owners of each class in two sums."""
        return {"prototypes": Sum(), "owners": Sum()}

    def init_server(self, context: Context) -> State:
        """Start without prototypes."""
        nothing = torch.zeros_like(context.initial["head.weight"])  # [classes, d], like the head's rows
        return {"prototypes": nothing, "known": nothing.new_zeros(len(nothing), dtype=torch.bool)}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train with the pull towards global prototypes, then compute the own ones (Algorithm 1)."""
        net = client.net

        def loss(w: Params, batch: Batch, target: dict[str, Tensor]) -> Tensor:
            """Eq. 7: cross-entropy + lambda * distance, which is 0 for classes without a prototype."""
            z = net.features(w, batch.x)
            distance = (z - target["prototypes"][batch.y]).square().mean(1) * target["known"][batch.y]
            return client.loss_of(net.head(w, z), batch) + self.lam * distance.mean()

        target = {"prototypes": down["prototypes"], "known": down["known"]}
        w = (await client.fit(state["weights"], loss, target)).weights
        mean = await class_means(client, w, net.eval.features, down["prototypes"].dtype)  # eq. 3
        counts = client.class_counts.to(mean)
        weight = counts if self.prototype_weights == "counts" else (counts > 0).to(mean)
        return {"prototypes": mean * weight[:, None], "owners": weight}, {"weights": w}

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """Average the prototypes of each class over its owners (eq. 6)."""
        owned = up["owners"] > 0
        mean = up["prototypes"] / up["owners"].clamp(min=1)[:, None]
        prototypes = torch.where(owned[:, None], mean, server["prototypes"])
        return {"prototypes": prototypes, "known": server["known"] | owned}

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score classes by their prototypes' distance, negative (eq. 4); no unknown class is ever chosen."""
        z = await client.features(state["weights"], x)
        by_head, known = client.net.eval.head(state["weights"], z), down["known"]
        if self.predict == "head":
            return {"personal": by_head}
        near = -torch.cdist(z, down["prototypes"]).masked_fill(~known, float("inf"))
        return {"personal": torch.where(known.any(), near, by_head)}  # before anything is known, by the head

    def communication_bytes(
        self, client: Client, down: State, up: Mapping[str, Any]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Count the rows of the classes that the client owns: it need not send the others."""
        sent = {key: bytes_of_owned(client, up[key]) for key in ("prototypes", "owners")}
        return {"prototypes": down["prototypes"].nbytes}, sent
