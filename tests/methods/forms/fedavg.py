"""FedAvg: McMahan et al., AISTATS 2017, Algorithm 1."""

import torch

from tests.methods.forms.world import Outcome, World, clip, mean, score, sgd, weights_of


def run(world: World) -> Outcome:
    """Train the cohorts; the server averages by samples."""
    weights = weights_of(world.make())
    for round, cohort in enumerate(world.cohorts):
        trained = []
        for i in cohort:
            net, data = world.make(), world.clients[i]
            net.load_state_dict(weights)
            optimiser = sgd(world, net)
            for batch in world.batches(i, round):
                optimiser.zero_grad()
                world.loss(net(data.x[batch]), data.y[batch]).backward()
                clip(world, net)
                optimiser.step()
            trained.append(weights_of(net))
        weights = mean(trained, world.samples(cohort))
    net = world.make()
    net.load_state_dict(weights)
    scores = torch.stack([score(net, world.probe)] * len(world.clients))
    return Outcome({"weights": weights}, [{} for _ in world.clients], {"personal": scores, "global": scores})
