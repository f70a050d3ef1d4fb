"""Federated averaging of a part of the net; the rest stays with the client."""

from collections.abc import Callable

import torch
from torch import nn

from tests.methods.forms.world import Outcome, World, mean, score, train, weights_of


def average_part(world: World, stays: Callable[[nn.Module], set[str]]) -> Outcome:
    """Train the cohorts, one fit (0) per round; the server averages, by samples, what does not stay.

    Nothing is drawn.
    """
    net = world.make()
    start, names = weights_of(net), stays(net)
    shared = {name: value for name, value in start.items() if name not in names}
    own = [{name: value for name, value in start.items() if name in names} for _ in world.clients]
    for round, cohort in enumerate(world.cohorts):
        trained = []
        for i in cohort:
            net.load_state_dict(shared | own[i])
            train(world, net, world.clients[i], world.batches(i, round))
            result = weights_of(net)
            own[i] = {name: result[name] for name in own[i]}
            trained.append({name: result[name] for name in shared})
        shared = mean(trained, world.samples(cohort))
    scores = []
    for personal in own:
        net.load_state_dict(shared | personal)
        scores.append(score(net, world.probe))
    clients = [{"personal": personal} for personal in own]
    return Outcome({"weights": shared}, clients, {"personal": torch.stack(scores)})
