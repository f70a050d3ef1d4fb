"""FedSR."""

from __future__ import annotations

import math
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rayfl.errors import Conflict
from rayfl.methods.base import Facts, Method
from rayfl.nets import GaussianMean
from rayfl.randomness import seed_of
from rayfl.settings import at_least
from rayfl.training import Batch, Client, Context, Params, State, noise

SMALLEST = 1e-6
"""Least scale of a Gaussian."""
SMALLEST_C = 1e-3
"""Least magnitude of C."""


class FedSR(Method):
    """A simple representation learning method for domain generalisation in federated learning (Nguyen, Torr
    and Lim, NeurIPS 2022): FedAvg on features that are drawn, small, and explained by the class.

    The extractor gives a Gaussian of features; one draw goes to the head. Added to the loss are the mean norm
    of the features (L2R), and the divergence of the Gaussian, scaled by C, from one of the class (CMI), whose
    mean and scale each client learns for itself. Models are scored by the mean probabilities of some draws.

    Deviations from the paper: FedSR follows FDSE's public code, as its table does, but for the gradients of
    the tables of classes, which add up there from step to step. These tables take the run's learning rate
    and momentum. At evaluation all inputs share their draws. The mean is weighted by samples (``averaging``),
    where the paper's is uniform.
    """

    facts = Facts(tasks=("classes",))

    alpha_l2r: Annotated[float, at_least(0)] = 0.01
    """Weight of the norm of the features."""
    alpha_cmi: Annotated[float, at_least(0)] = 0.001
    """Weight of the divergence from the classes' Gaussians."""
    test_samples: Annotated[int, at_least(1)] = 20
    """Draws of features at evaluation."""

    def prepare(self, context: Context) -> list[str]:
        """Find the Gaussian; refuse nets without one."""
        modules = context.net.module.named_modules()
        found = [name for name, module in modules if isinstance(module, GaussianMean)]
        if len(found) != 1:
            raise Conflict(
                "net",
                "has no extractor that ends in a Gaussian of features, and FedSR needs one",
                "choose --net FedSRAlexNet, or FedSRCNN for small images",
            )
        return found

    def init_client(self, client: Client) -> State:
        """Start the classes' Gaussians at mean 0 and scale softplus(1), and C at 1."""
        like = client.initial["head.weight"]  # [classes, z]
        tables = {"mean": torch.zeros_like(like), "scale": torch.ones_like(like), "C": like.new_ones(())}
        return {"classes": Params(tables, frozenset(tables))}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Train the model and the client's own Gaussians of the classes."""
        net, layer = client.net, client.context.prepared
        l2r, cmi = self.alpha_l2r, self.alpha_cmi

        def loss(w: dict[str, Params], batch: Batch, extra: None) -> Tensor:
            _, (both,) = net.watch(w["net"], batch.x, layer)
            mean, scale = mean_and_scale(both)
            z = mean + scale * noise.normal(batch.key, tuple(mean.shape)).to(mean)
            task = client.loss_of(net.head(w["net"], z), batch)
            return task + l2r * z.norm(dim=1).mean() + cmi * kl_to_classes(w["classes"], mean, scale, batch.y)

        fitted = (await client.fit({"net": down["weights"], "classes": state["classes"]}, loss)).weights
        return {"weights": fitted["net"]}, {"classes": fitted["classes"]}

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        """Score the mean probabilities of draws, as their logarithms."""
        net, w = client.net.eval, down["weights"]
        _, (both,) = net.watch(w, x, client.context.prepared)
        mean, scale = mean_and_scale(both)
        key = torch.tensor(seed_of(client.context.seed, "features at evaluation"), device=x.device)
        draws = [noise.normal(noise.split(key, k), mean.shape[1:]).to(mean) for k in range(self.test_samples)]
        each = torch.stack([F.log_softmax(net.head(w, mean + scale * eps), 1) for eps in draws])
        scores = each.logsumexp(0) - math.log(self.test_samples)
        return {"personal": scores, "global": scores}


def mean_and_scale(both: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and scale, [B, z] each, of what an extractor puts out, [B, 2 z]."""
    mean, raw = both.chunk(2, -1)
    return mean, F.softplus(raw).clamp(min=SMALLEST)


def kl_to_classes(classes: Params, mean: Tensor, scale: Tensor, y: Tensor) -> Tensor:
    """Return KL(N(C mean, (C scale)^2) || N(r_y, s_y^2)), summed over features, the mean over the batch.

    Args:
        classes: mean r and scale before the softplus, [classes, z] each, and C.
        mean: [B, z].
        scale: [B, z].
        y: labels, [B].
    """
    sign = torch.where(classes["C"] < 0, -1.0, 1.0)
    c = sign * classes["C"].abs().clamp(min=SMALLEST_C)
    r, s = classes["mean"][y], F.softplus(classes["scale"][y]).clamp(min=SMALLEST)
    own = c.abs() * scale
    each = s.log() - own.log() + (own**2 + (c * mean - r) ** 2) / (2 * s**2) - 0.5
    return each.sum(1).mean()
