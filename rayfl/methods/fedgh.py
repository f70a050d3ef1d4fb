"""FedGH."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch

from rayfl.methods.base import Cohort, Facts
from rayfl.methods.local import Local
from rayfl.methods.prototypes import class_means, head_step
from rayfl.settings import above
from rayfl.training import Client, Context, Gather, Reduction, State


class FedGH(Local):
    """A global header for different extractors (Yi et al., ACM MM 2023).

    Clients keep their extractors, which may have different architectures, and train them together with a copy
    of the global header. They send the mean feature of each of their classes, on which the server trains the
    header.

    Deviations from the paper: the server's steps are plain gradient descent, one on each class mean of each
    client, in an order of clients drawn anew in each round (the public code never changes the header).
    Class means are exact, from a pass in eval mode.
    """

    facts = Facts(nets="equal_features", tasks=("classes",))

    server_lr: Annotated[float, above(0)] = 0.01
    """Learning rate of the server's steps on class means, eta_theta in the paper; constant, whatever
    ``training.schedule`` is.
    """

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        """Return class means, on which the server trains one by one."""
        return {"means": Gather(replaces=False)}

    def init_server(self, context: Context) -> State:
        """Start from the common header."""
        return {"head": context.head_part(context.initial)}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train extractor and header from the global header, then take the class means (Algorithm 1)."""
        w = (await client.fit(state["weights"].merge(down["head"]), client.loss)).weights
        dtype = down["head"]["head.weight"].dtype
        means = await class_means(client, w, client.net.eval.features, dtype)
        classes = client.class_counts.nonzero().flatten()
        return {"means": {"classes": classes, "mean": means[classes]}}, {"weights": w}

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """Train the header on one class mean after the other, client by client."""
        head, sent = server["head"], list(up["means"].values())
        order = torch.randperm(len(sent), generator=cohort.context.generator("order", cohort.round))
        for k in order.tolist():
            for c, mean in zip(sent[k]["classes"], sent[k]["mean"], strict=True):
                head = head_step(cohort.context.net, head, mean[None], c[None], self.server_lr)
        return {"head": head}

    def communication_bytes(
        self, client: Client, down: State, up: Mapping[str, Any]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Count every class mean with one number, its class, at the width of the weights."""
        sent = up["means"]["mean"]
        return {"head": down["head"].nbytes}, {
            "means": sent.nbytes,
            "classes": len(sent) * sent.element_size(),
        }
