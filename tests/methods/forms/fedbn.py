"""FedBN: Li et al., ICLR 2021, Algorithm 1."""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from tests.methods.forms.world import Outcome, World, clip, mean, score, sgd, weights_of


def batchnorm_names(net: nn.Module, bn_personal: str) -> set[str]:
    """Return the names of what stays with a client: all of BatchNorm, or its weights and biases alone."""
    return {
        f"{place}.{name}"
        for place, layer in net.named_modules()
        if isinstance(layer, _BatchNorm)
        for name in (layer.state_dict() if bn_personal == "all" else dict(layer.named_parameters()))
    }


def run(world: World, *, bn_personal: str = "all") -> Outcome:
    """Train the cohorts, one fit (0) per round; the server averages all but BatchNorm, by samples.

    Nothing is drawn.
    """
    net = world.make()
    names = batchnorm_names(net, bn_personal)
    shared = {name: value for name, value in weights_of(net).items() if name not in names}
    own = [{name: value for name, value in weights_of(net).items() if name in names} for _ in world.clients]
    for round, cohort in enumerate(world.cohorts):
        trained = []
        for i in cohort:
            data = world.clients[i]
            net.load_state_dict(shared | own[i])
            optimiser = sgd(world, net)
            for batch in world.batches(i, round):
                optimiser.zero_grad()
                world.loss(net(data.x[batch]), data.y[batch]).backward()
                clip(world, net)
                optimiser.step()
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
