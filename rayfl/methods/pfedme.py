"""pFedMe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.func import grad_and_value

from rayfl.data import FederatedData
from rayfl.methods.base import Cohort, Facts, Method, Metrics
from rayfl.methods.checks import warning_of_pull
from rayfl.settings import above, at_least
from rayfl.training import Batch, Client, Params, State, Training
from rayfl.training.optimisers import PLAIN_STEPS


class PFedMe(Method):
    """Personalised federated learning with Moreau envelopes (Dinh, Tran and Nguyen, NeurIPS 2020).

    In every step a client looks for its personal model theta, which minimises its loss on a batch plus
    lam / 2 ||theta - w||^2, by K steps of gradient descent from the theta of before, and moves its copy of
    the global model, w, towards it: w - lr lam (w - theta). The server averages the copies.

    Deviations from the paper: sampled clients train, where in the paper all do and some are averaged. K steps
    are taken, whatever is left of the gradient. A round has the steps of ``training.epochs`` passes, where
    the paper counts R batches. Copies are averaged with ``averaging``.
    """

    facts = Facts(works_with={"optimiser": "SGD", "momentum": 0, "weight_decay": 0, "clip": 0})

    lam: Annotated[float, at_least(0)] = 15.0
    """Weight of the distance between personal and global model, lambda."""
    K: Annotated[int, at_least(1)] = 5
    """Steps of the personal model on a batch."""
    personal_lr: Annotated[float, above(0)] = 1.0
    """Learning rate of the personal model, as a factor of the round's, eta, that of the global one."""
    beta: Annotated[float, above(0)] = 1.0
    """How far the server goes towards the mean; beyond it with more than 1."""

    def warning(self, training: Training, data: FederatedData, metrics: Metrics) -> str | None:
        """Warn where lr lam is above 1, for either model."""
        return warning_of_pull("method.lam", self.lam, training, max(1.0, self.personal_lr))

    def init_client(self, client: Client) -> State:
        """Start from the common initial weights."""
        return {"own": client.initial, "trained": False}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Take steps of w towards the personal models of its batches (Algorithm 1)."""
        net, lam, steps = client.net, self.lam, self.K

        def of_batch(theta: dict[str, Tensor], rest: dict[str, Tensor], batch: Batch) -> tuple[Tensor, Any]:
            """Return the loss, and what the net made of its buffers."""
            w = Params({**theta, **{n: t.clone() for n, t in rest.items()}}, frozenset(theta), live=True)
            return client.loss_of(net(w, batch.x), batch), {n: w[n] for n in rest}

        step_of = grad_and_value(of_batch, has_aux=True)

        def moreau_envelope(models: dict[str, Params], batch: Batch, lr: float) -> Tensor:
            """Find theta, keep it, and return the loss of it with the gradient lam (w - theta)."""
            w, kept = models["w"], models["theta"]
            centre = {n: t.detach() for n, t in w.items() if n in w.train_names}
            theta = {n: kept[n].clone() for n in centre}
            rest = {n: t.clone() for n, t in w.items() if n not in centre}
            for _ in range(steps):
                gradients, (loss, rest) = step_of(theta, rest, batch)
                theta = {n: t - lr * (gradients[n] + lam * (t - centre[n])) for n, t in theta.items()}
            with torch.no_grad():
                for n in theta:
                    kept[n].copy_(theta[n])
                for n in rest:
                    w[n].copy_(rest[n])
                    kept[n].copy_(rest[n])
            off = torch.stack([((w[n] - theta[n]) ** 2).sum() for n in theta]).sum() * lam / 2
            return loss.detach() + off - off.detach()

        received: Params = down["weights"]
        start = {"w": received, "theta": Params(received.tensors, frozenset())}
        lr = self.personal_lr * client.lr
        w = (await client.fit(start, moreau_envelope, lr, **PLAIN_STEPS)).weights
        own = Params(w["theta"].tensors, received.train_names)
        return {"weights": w["w"]}, {"own": own, "trained": True}

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """Move by beta towards the mean of the copies; BatchNorm statistics become their mean."""
        mean: Params = up["weights"]  # beyond the mean, with a beta above 1, variances could be negative
        moved = (1 - self.beta) * server["weights"].trainable() + self.beta * mean.trainable()
        return {"weights": mean.merge(moved)}

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score the personal model, the global one until there is one, and the global model."""
        common = await client.eval(down["weights"], x)
        own = await client.eval(state["own"], x) if state["trained"] else common
        return {"personal": own, "global": common}
