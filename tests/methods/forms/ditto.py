"""Ditto: T. Li et al., ICML 2021, Algorithm 1."""

import torch

from tests.methods.forms.world import Outcome, World, mean, net_of, score, sgd, step, weights_of


def run(world: World, *, mu: float = 1.0) -> Outcome:
    """Train w as FedAvg does, and beside it each client's v, which the received w pulls.

    A round has one fit: w and v see the same batches.
    """
    weights = weights_of(world.make())
    personal = [weights_of(world.make()) for _ in world.clients]
    for round, cohort in enumerate(world.cohorts):
        trained = []
        for i in cohort:
            data = world.clients[i]
            w, v = net_of(world, weights), net_of(world, personal[i])
            optimiser_w, optimiser_v = sgd(world, w), sgd(world, v)
            for batch in world.batches(i, round):
                x, y = data.x[batch], data.y[batch]
                step(world, world.loss(w(x), y), optimiser_w, w)
                # h(v; w_t) = F(v) + μ/2 ‖v − w_t‖²: w_t is what was received, not the copy in training.
                pull = sum((p - weights[name]).square().sum() for name, p in v.named_parameters())
                step(world, world.loss(v(x), y) + mu / 2 * pull, optimiser_v, v)
            trained.append(weights_of(w))
            personal[i] = weights_of(v)
        weights = mean(trained, world.samples(cohort))
    logits = {
        "personal": torch.stack([score(net_of(world, v), world.probe) for v in personal]),
        "global": torch.stack([score(net_of(world, weights), world.probe)] * len(world.clients)),
    }
    return Outcome({"weights": weights}, [{"personal": v} for v in personal], logits)
