"""pFedVEM: Zhu, Ma and Blaschko, CVPR 2023, Algorithm 1."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.methods.forms.world import Outcome, World, mean, net_of, sgd, step, weights_of


class Posterior(nn.Module):
    """The mean-field Gaussian of a head's weights and, in the last column, biases: [C, d + 1]."""

    def __init__(self, mean: Tensor, deviation: Tensor):
        super().__init__()
        self.mean, self.raw = nn.Parameter(mean.clone()), nn.Parameter(deviation.expm1().log())

    def nll(self, world: World, z: Tensor, y: Tensor, noise: Tensor) -> Tensor:
        """Return the mean negative log-likelihood of features [B, d], under heads by noise [mc, C, d + 1]."""
        heads = self.mean + F.softplus(self.raw) * noise
        return torch.stack([world.loss(F.linear(z, w[:, :-1], w[:, -1]), y) for w in heads]).mean()


def run(
    world: World,
    *,
    head_lr: float = 1.0,
    head_epochs: int | None = None,
    init_scale: float = 1.0,
    beta: float = 0.0,
    normalize_elbo: bool = True,
) -> Outcome:
    """Fit a posterior of the head per client, and a common base.

    Draws, standard normal: "prior" (all places 0) [C, d + 1], biases last; "head noise" (client, round, 0,
    step) and "base noise" (client, round, 0, step) [mc_samples, C, d + 1], of a step of either phase. The fit
    of the head takes all samples at once, so that the base's batches are those of fit 0.
    """
    initial, n = weights_of(world.make()), len(world.clients)
    base = {k: v for k, v in initial.items() if not k.startswith("head.")}
    prior = world.draw("prior", 0, 0, 0, 0)
    kept: list[tuple[Tensor, Tensor] | None] = [None] * n
    for round, cohort in enumerate(world.cohorts):
        bases, means, confidences = [], [], []
        for i in cohort:
            net, x, y = net_of(world, initial | base), world.clients[i].x, world.clients[i].y
            mu, sigma = kept[i] or (prior, torch.full_like(prior, init_scale))
            rho2 = (sigma**2 + (mu - prior) ** 2).mean()
            q = Posterior(mu, sigma)
            optimiser = torch.optim.SGD(
                q.parameters(), head_lr * world.lr, 0.9, weight_decay=world.weight_decay
            )
            with torch.no_grad():
                z = net.eval().fc(net.conv(x))
            for s in range(head_epochs or world.epochs):
                sigma = F.softplus(q.raw)
                kl = (
                    (sigma**2 + (q.mean - prior) ** 2) / (2 * rho2) - 0.5 - (sigma / rho2.sqrt()).log()
                ).sum()
                elbo = q.nll(world, z, y, world.draw("head noise", i, round, 0, s)) + kl / len(y)
                optimiser.zero_grad()
                (elbo * (1 if normalize_elbo else len(y))).backward()
                for p in q.parameters() if world.clip else ():  # apart, as the page of the method says
                    nn.utils.clip_grad_norm_([p], world.clip)
                optimiser.step()
            q.requires_grad_(False)
            optimiser = sgd(world, net.train())
            for s, batch in enumerate(world.batches(i, round)):
                z = net.fc(net.conv(x[batch]))
                step(
                    world, q.nll(world, z, y[batch], world.draw("base noise", i, round, 0, s)), optimiser, net
                )
            kept[i] = weights_of(q)["mean"], F.softplus(q.raw)
            bases.append({k: v for k, v in weights_of(net).items() if k in base})
            means.append({"mean": kept[i][0]})
            confidences.append(1 / rho2)
        base = mean(bases, world.samples(cohort))
        prior = beta * prior + (1 - beta) * mean(means, torch.stack(confidences))["mean"]

    net = net_of(world, initial | base).eval()
    with torch.no_grad():
        z = net.fc(net.conv(world.probe))
    heads = [prior if k is None else k[0] for k in kept]  # who was never in a cohort has the newest mean
    views = {"personal": heads, "global": [prior] * n}
    logits = {
        view: torch.stack([F.linear(z, w[:, :-1], w[:, -1]) for w in each]) for view, each in views.items()
    }
    clients = [{} if k is None else {"head": {"mean": k[0], "deviation": k[1]}} for k in kept]
    return Outcome({"weights": base, "head": {"mean": prior}}, clients, logits)
