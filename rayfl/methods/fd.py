"""FD: federated distillation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch.nn.functional as F
from torch import Tensor

from rayfl.methods.base import Cohort, Facts
from rayfl.methods.local import Local
from rayfl.methods.prototypes import bytes_of_owned, class_means
from rayfl.settings import at_least
from rayfl.training import Batch, Client, Context, Params, Reduction, State, Sum


class FD(Local):
    """Federated distillation (Jeong et al., "Communication-efficient on-device machine learning",
    arXiv 1811.11479, 2018).

    Clients keep their models and exchange what these answer: the mean softmax output of each class. The mean
    of the others' answers teaches a client.

    Deviations from the paper: the own answers are taken by a pass in eval mode after training, not summed up
    while training.
    """

    facts = Facts(nets="any", tasks=("classes",))

    gamma: Annotated[float, at_least(0)] = 1.0
    """Weight of the distillation; with 0 the models are trained locally."""

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        """Return the mean output of each class that the client owns, and that it owns it."""
        return {"outputs": Sum(), "owners": Sum()}

    def init_server(self, context: Context) -> State:
        """Start without answers."""
        classes = len(context.initial["head.weight"])
        none = context.initial["head.weight"].new_zeros(classes, classes)
        return {"outputs": none, "owners": none[0].clone(), "round": -1}

    def init_client(self, client: Client) -> State:
        """Start from the common initial weights, without answers."""
        classes = client.classes
        none = client.initial["head.weight"].new_zeros(classes, classes)
        return {"weights": client.initial, "outputs": none, "owners": none[0].clone(), "round": -2}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train with the others' answers as targets, then give the own ones (Algorithm 1)."""
        net = client.net

        def loss(w: Params, batch: Batch, taught: dict[str, Tensor]) -> Tensor:
            """Cross-entropy + gamma times that of the others' mean output, where there is one."""
            scores = net(w, batch.x)
            log_q = F.log_softmax(scores, 1)
            distance = -(taught["targets"][batch.y] * log_q).sum(1) * taught["known"][batch.y]
            return client.loss_of(scores, batch) + self.gamma * distance.mean()

        def class_outputs(w: Params, x: Tensor) -> Tensor:
            return net.eval(w, x).softmax(1)

        fitted = await client.fit(state["weights"], loss, self._others_outputs(state, down))
        outputs = await class_means(client, fitted.weights, class_outputs, down["outputs"].dtype)
        owners = (client.class_counts > 0).to(outputs)
        own = {"outputs": outputs, "owners": owners}
        return own, {"weights": fitted.weights, **own, "round": client.round}

    def _others_outputs(self, state: State, down: State) -> dict[str, Tensor]:
        """Return the mean outputs of the others; the own ones are in the sum if they were sent last."""
        mine = float(state["round"] == down["round"])
        outputs = down["outputs"] - mine * state["outputs"]
        owners = down["owners"] - mine * state["owners"]
        known = owners > 0.5  # of whole numbers
        return {"targets": outputs / owners.clamp(min=1)[:, None], "known": known.to(outputs)}

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """Keep the sums of this round."""
        return {**up, "round": cohort.round}

    def communication_bytes(
        self, client: Client, down: State, up: Mapping[str, Any]
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Count the rows of the classes that the client owns: it need not send the others."""
        keys = ("outputs", "owners")
        return {key: down[key].nbytes for key in keys}, {key: bytes_of_owned(client, up[key]) for key in keys}
