"""pFedVEM."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rayfl.methods.base import Cohort, Facts, Method
from rayfl.randomness import generator
from rayfl.settings import above, at_least, below
from rayfl.training import Batch, Client, Context, Mean, Params, Reduction, State, Sum, noise
from rayfl.training.net import Net

HEAD_MOMENTUM = 0.9
"""Of the SGD that fits the posterior of a head, as in the public code."""


class PFedVEM(Method):
    """Confidence-aware personalised federated learning by variational expectation maximisation (Zhu, Ma and
    Blaschko, CVPR 2023).

    The base of the net is shared. A client's head is random: it has a Gaussian posterior of its own, drawn to
    a common prior mean; the server weighs the means of the posteriors by how close to the prior they stay.

    Deviations from the paper: sampled clients train, where in the public code all do and some are aggregated.
    The objective of a head is divided by the number of samples (``normalize_elbo``). While heads are fitted
    the BatchNorm layers of the base use their running statistics.
    """

    # heads have a momentum of their own
    facts = Facts(works_with={"optimiser": "SGD"}, tasks=("classes", "numbers", "labels"))

    mc_samples: Annotated[int, at_least(1)] = 5
    """Heads that are drawn to estimate an expectation."""
    head_lr: Annotated[float, above(0)] = 1.0
    """Learning rate of the heads, as a factor of the round's, which is that of the base."""
    head_epochs: Annotated[int, at_least(1)] | None = None
    """Steps of a head in a round, each on all data of the client; ``training.epochs``, or
    ``training.steps`` where that is set, if not given.
    """
    init_scale: Annotated[float, above(0)] = 1.0
    """Standard deviation of a head at first."""
    beta: Annotated[float, at_least(0), below(1)] = 0.0
    """How much of the prior mean of before the server keeps; in the public code also of the base."""
    normalize_elbo: bool = True
    """Whether the objective of a head is a mean over samples. Without it is the paper's sum, which needs a
    learning rate far smaller than that of the base.
    """

    def shared(self, net: Net, name: str, module: nn.Module) -> bool:
        """Share the base."""
        return name not in net.names("last_layer", "head")

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        """Return the base; the mean of the own head times the confidence in it; the confidence, 1 / rho^2."""
        return {"weights": Mean(), "head": Sum(), "confidence": Sum()}

    def init_server(self, context: Context) -> State:
        """Start from the common base and a random prior mean."""
        return {
            "weights": context.shared_part(context.initial),
            "head": initial_prior(context, context.initial),
        }

    def init_client(self, client: Client) -> State:
        """Start from the prior mean; until the client has trained, that of the server."""
        mean = initial_prior(client.context, client.initial)
        inverse = self.init_scale + math.log(-math.expm1(-self.init_scale))  # of softplus; never too large
        spread = mean.map(lambda t: torch.full_like(t, inverse))
        return {"mean": mean, "spread": spread, "trained": False}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Renew the confidence, fit the posterior of the head, then train the base below it (Algorithm 1)."""
        net, prior = client.net, down["head"]
        start = {"mean": state["mean"] if state["trained"] else prior, "spread": state["spread"]}
        variance = variance_of(start, prior)

        def negative_elbo(head: dict[str, Params], batch: Batch, extra: dict[str, Any]) -> Tensor:
            """Return the negative log-likelihood of all samples + KL(q || N(prior, rho^2))."""
            z = net.eval.features(extra["base"], batch.x).detach()
            nll = self._expected_loss(client, net.head, head, z, batch) * len(batch.y)
            objective = nll + posterior_divergence(head, extra["prior"], extra["variance"])
            return objective / len(batch.y) if self.normalize_elbo else objective

        def of_base(base: Params, batch: Batch, head: dict[str, Params]) -> Tensor:
            return self._expected_loss(client, net.eval.head, head, net.features(base, batch.x), batch)

        extra = {"base": down["weights"], "prior": prior, "variance": variance}
        fitted = await client.fit(
            start,
            negative_elbo,
            extra,
            batch_size=0,
            epochs=self.head_epochs,
            lr=self.head_lr * client.lr,
            momentum=HEAD_MOMENTUM,
        )
        head = fitted.weights
        base = (await client.fit(down["weights"], of_base, head)).weights
        up = {"weights": base, "head": head["mean"] / variance, "confidence": 1 / variance}
        return up, {**head, "trained": True}

    def _expected_loss(
        self, client: Client, through: Any, head: dict[str, Params], z: Tensor, batch: Batch
    ) -> Tensor:
        """Return the mean loss over heads drawn from the posterior."""
        losses = []
        for k in range(self.mc_samples):
            key = noise.split(batch.key, k)
            drawn = {
                name: mean
                + F.softplus(head["spread"][name]) * noise.normal(noise.split(key, i), mean.shape).to(mean)
                for i, (name, mean) in enumerate(head["mean"].items())
            }
            scores = through(Params(drawn, head["mean"].train_names), z)
            losses.append(client.loss_of(scores, batch))
        return torch.stack(losses).mean()

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        """Average the bases, and the means of the heads by their confidence."""
        mean: Params = up["head"] / up["confidence"]
        return {"weights": up["weights"], "head": self.beta * server["head"] + (1 - self.beta) * mean}

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score the base with the mean of the own head, and with the prior mean."""
        net = client.net.eval
        z = await client.features(down["weights"], x)
        own = state["mean"] if state["trained"] else down["head"]
        return {"personal": net.head(own, z), "global": net.head(down["head"], z)}

    def trained(self, client: Client, down: State, up: Mapping[str, Any]) -> State:
        """The client's own base and head right after training."""
        return {"weights": up["weights"], "head": up["head"] / up["confidence"]}

    def state_for_new_clients(self, context: Context, state: State) -> State:
        """New clients start from the prior mean."""
        return {}


def initial_prior(context: Context, initial: Params) -> Params:
    """Return the first prior mean: standard normal numbers, the same for every process."""
    draw = generator(context.seed, "prior mean")
    return context.personal_part(initial).map(lambda t: torch.randn(t.shape, generator=draw).to(t))


def variance_of(head: Mapping[str, Params], prior: Params) -> Tensor:
    """Return rho^2 of a posterior, the mean of sigma^2 + (mu - prior)^2 over all numbers of the head."""
    off = (head["mean"] - prior).sq_norm() + head["spread"].map(F.softplus).sq_norm()
    return off / prior.numel()


def posterior_divergence(head: Mapping[str, Params], prior: Params, variance: Tensor) -> Tensor:
    """Return KL(N(mu, sigma^2) || N(prior, rho^2)), summed over all numbers of a head."""
    sigma = head["spread"].map(F.softplus)
    off = (head["mean"] - prior).sq_norm() + sigma.sq_norm()
    logs = torch.stack([t.log().sum() for t in sigma.values()]).sum()
    n = prior.numel()
    return n / 2 * variance.log() - logs + off / (2 * variance) - n / 2
