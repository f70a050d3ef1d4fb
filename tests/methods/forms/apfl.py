"""APFL: Deng, Kamani, Mahdavi, arXiv 2003.13461, 2020, Algorithm 1."""

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tests.methods.forms.world import Outcome, World, load, mean, net_of, score, sgd, step, weights_of


def mixed(alpha: Tensor, v: nn.Module, w: nn.Module) -> dict[str, Tensor]:
    """Return the parameters of α v + (1 − α) w; gradients reach α and v."""
    other = dict(w.named_parameters())
    return {name: alpha * p + (1 - alpha) * other[name].detach() for name, p in v.named_parameters()}


def run(world: World, *, alpha: float = 0.5, adaptive: bool = True) -> Outcome:
    """Train w as FedAvg does, and each client's v through the mixture of both.

    A round has one fit: α's step sees its first batch, w and v see all of them.
    """
    count = len(world.clients)
    weights = weights_of(world.make())
    personal = [weights_of(world.make()) for _ in range(count)]
    alphas = [torch.tensor(alpha, dtype=torch.float64) for _ in range(count)]
    for round, cohort in enumerate(world.cohorts):
        trained = []
        for i in cohort:
            data, batches = world.clients[i], world.batches(i, round)
            w, v = net_of(world, weights), net_of(world, personal[i])
            # Open on the page: α moves before the round's other steps, so all of them use the new one.
            if adaptive and batches:  # eq. 11: α ← α − η ⟨v − w, ∇f(α v + (1 − α) w)⟩
                a = alphas[i].clone().requires_grad_()
                v.eval()
                scores = functional_call(v, mixed(a, v, w), (data.x[batches[0]],))
                world.loss(scores, data.y[batches[0]]).backward()
                v.train()
                alphas[i] = (alphas[i] - world.lr * a.grad).clamp(0, 1)
            optimiser = sgd(world, w, v)
            for batch in batches:
                x, y = data.x[batch], data.y[batch]
                # The gradient is that in v, which has a factor α. A pass changes only v's statistics.
                through = functional_call(v, mixed(alphas[i], v, w), (x,))
                loss = world.loss(w(x), y) + world.loss(through, y)
                step(world, loss, optimiser, w, v)
            trained.append(weights_of(w))
            personal[i] = weights_of(v)
        weights = mean(trained, world.samples(cohort))
    w = net_of(world, weights)
    logits = {"personal": [], "global": [score(w, world.probe)] * count}
    for a, own in zip(alphas, personal, strict=True):
        v = net_of(world, own)
        load(v, mixed(a, v, w))  # v's statistics stay
        logits["personal"].append(score(v, world.probe))
    clients = [{"personal": v, "alpha": {"alpha": a}} for v, a in zip(personal, alphas, strict=True)]
    return Outcome({"weights": weights}, clients, {view: torch.stack(each) for view, each in logits.items()})
