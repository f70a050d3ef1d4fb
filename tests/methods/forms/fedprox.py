"""FedProx: Li et al., MLSys 2020, Algorithm 2."""

import torch
from torch.nn.utils import parameters_to_vector

from tests.methods.forms.world import Outcome, World, clip, mean, score, sgd, weights_of


def run(world: World, *, mu: float = 0.01, norm: str = "squared") -> Outcome:
    """Train the cohorts near the received model, one fit (0) per round; the server averages by samples.

    Nothing is drawn.
    """
    net = world.make()
    weights = weights_of(net)
    for round, cohort in enumerate(world.cohorts):
        trained = []
        for i in cohort:
            data = world.clients[i]
            net.load_state_dict(weights)
            received = parameters_to_vector(net.parameters()).detach().clone()
            optimiser = sgd(world, net)
            for batch in world.batches(i, round):
                optimiser.zero_grad()
                # h(w; w_t) = F(w) + mu / 2 |w - w_t|^2 (eq. 2); |.| has gradient 0 at 0
                distance = torch.linalg.vector_norm(parameters_to_vector(net.parameters()) - received)
                penalty = mu / 2 * (distance**2 if norm == "squared" else distance)
                (world.loss(net(data.x[batch]), data.y[batch]) + penalty).backward()
                clip(world, net)
                optimiser.step()
            trained.append(weights_of(net))
        weights = mean(trained, world.samples(cohort))
    net.load_state_dict(weights)
    scores = torch.stack([score(net, world.probe)] * len(world.clients))
    return Outcome({"weights": weights}, [{} for _ in world.clients], {"personal": scores, "global": scores})
