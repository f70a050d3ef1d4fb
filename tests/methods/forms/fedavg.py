"""FedAvg: McMahan et al., AISTATS 2017, Algorithm 1."""

import torch

from tests.methods.forms.world import Outcome, World, mean, score, train, weights_of


def run(world: World) -> Outcome:
    """Train the cohorts; the server averages by samples."""
    weights = weights_of(world.make())
    for round, cohort in enumerate(world.cohorts):
        trained = []
        for i in cohort:
            net = world.make()
            net.load_state_dict(weights)
            train(world, net, world.clients[i], world.batches(i, round))
            trained.append(weights_of(net))
        weights = mean(trained, world.samples(cohort))
    net = world.make()
    net.load_state_dict(weights)
    scores = torch.stack([score(net, world.probe)] * len(world.clients))
    return Outcome({"weights": weights}, [{} for _ in world.clients], {"personal": scores, "global": scores})
