"""MR-MTL: Z. Liu et al., NeurIPS 2022, Algorithm A1 without noise."""

import torch

from tests.methods.forms.world import Outcome, World, mean, net_of, score, sgd, step, weights_of


def run(world: World, *, lam: float = 1.0) -> Outcome:
    """Train each client's own model on, pulled towards the mean of those that took part before."""
    average = weights_of(world.make())
    own = [weights_of(world.make()) for _ in world.clients]
    for round, cohort in enumerate(world.cohorts):
        for i in cohort:
            data, net = world.clients[i], net_of(world, own[i])
            optimiser = sgd(world, net)
            for batch in world.batches(i, round):
                distance = sum((p - average[name]).square().sum() for name, p in net.named_parameters())
                loss = world.loss(net(data.x[batch]), data.y[batch]) + lam / 2 * distance
                step(world, loss, optimiser, net)
            own[i] = weights_of(net)
        average = mean([own[i] for i in cohort], world.samples(cohort))
    logits = {
        "personal": torch.stack([score(net_of(world, w), world.probe) for w in own]),
        "global": torch.stack([score(net_of(world, average), world.probe)] * len(own)),
    }
    return Outcome({"weights": average}, [{"personal": w} for w in own], logits)
