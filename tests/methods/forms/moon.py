"""MOON: Li, He and Song, CVPR 2021, Algorithm 1, with the input of the last layer as representation."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.methods.forms.world import Outcome, World, clip, mean, score, sgd, weights_of


def features(net: nn.Module, x: Tensor) -> Tensor:
    """Return what goes into the last linear layer."""
    z: Tensor = net.get_submodule("fc")(net.get_submodule("conv")(x))
    return z


def run(world: World, *, mu: float = 1.0, tau: float = 0.5) -> Outcome:
    """Train the cohorts with the contrastive loss, one fit (0) per round; the server averages by samples.

    Nothing is drawn.
    """
    net, received, last = world.make(), world.make().eval(), world.make().eval()
    weights = weights_of(net)
    previous = [weights_of(net) for _ in world.clients]  # the initial model, until one takes part
    for round, cohort in enumerate(world.cohorts):
        trained = []
        for i in cohort:
            data = world.clients[i]
            net.load_state_dict(weights)
            received.load_state_dict(weights)
            last.load_state_dict(previous[i])
            optimiser = sgd(world, net)
            for batch in world.batches(i, round):
                optimiser.zero_grad()
                x, y = data.x[batch], data.y[batch]
                z = features(net, x)
                with torch.no_grad():
                    z_glob, z_prev = features(received, x), features(last, x)
                near = (F.cosine_similarity(z, z_glob) / tau).exp()
                far = (F.cosine_similarity(z, z_prev) / tau).exp()
                contrastive = -(near / (near + far)).log().mean()  # eq. 3
                supervised = world.loss(net.get_submodule("head")(z), y)
                (supervised + mu * contrastive).backward()  # eq. 4
                clip(world, net)
                optimiser.step()
            previous[i] = weights_of(net)
            trained.append(weights_of(net))
        weights = mean(trained, world.samples(cohort))
    net.load_state_dict(weights)
    scores = torch.stack([score(net, world.probe)] * len(world.clients))
    clients = [{"previous": state} for state in previous]
    return Outcome({"weights": weights}, clients, {"personal": scores, "global": scores})
