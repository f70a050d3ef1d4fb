"""Local training: every client has a model of its own, and there is no federation."""

import torch

from tests.methods.forms.world import Outcome, World, score, train, weights_of


def run(world: World) -> Outcome:
    """Train the models of the cohorts, one fit (0) per round. Nothing is drawn."""
    net = world.make()
    own = [weights_of(net) for _ in world.clients]  # from the common initial weights
    for round, cohort in enumerate(world.cohorts):
        for i in cohort:
            net.load_state_dict(own[i])
            train(world, net, world.clients[i], world.batches(i, round))
            own[i] = weights_of(net)
    scores = []
    for weights in own:
        net.load_state_dict(weights)
        scores.append(score(net, world.probe))
    return Outcome({}, [{"personal": weights} for weights in own], {"personal": torch.stack(scores)})
