"""FedAMP: Y. Huang et al., AAAI 2021, Algorithm 1."""

import torch

from tests.methods.forms.world import Outcome, Weights, World, net_of, score, sgd, stacked, step, weights_of


def run(world: World, *, alpha: float = 1.0, sigma: float = 1.0, lam: float = 1.0) -> Outcome:
    """Train each client's model, which its cloud model pulls; nothing is averaged. A round has one fit."""
    sent: dict[int, Weights] = {}  # what the server has
    own = [weights_of(world.make()) for _ in world.clients]
    names = [name for name, _ in world.make().named_parameters()]
    for round, cohort in enumerate(world.cohorts):
        for i in cohort:
            data, net, w = world.clients[i], net_of(world, own[i]), own[i]
            u = {name: w[name] for name in names}
            for j, other in sent.items() if i in sent else ():
                if j != i:  # eq. 4: α A′(‖w_i − w_j‖²), where A(d) = 1 − exp(−d / σ)
                    distance = sum((w[name] - other[name]).square().sum() for name in names)
                    c = alpha * torch.exp(-distance / sigma) / sigma
                    u = {name: u[name] + c * (other[name] - w[name]) for name in names}
            optimiser = sgd(world, net)
            for batch in world.batches(i, round):  # eq. 6: F(w) + λ / (2 α) ‖w − u‖²
                pull = sum((p - u[name]).square().sum() for name, p in net.named_parameters())
                loss = world.loss(net(data.x[batch]), data.y[batch]) + lam / (2 * alpha) * pull
                step(world, loss, optimiser, net)
            own[i] = weights_of(net)
        sent |= {i: own[i] for i in cohort}
    logits = torch.stack([score(net_of(world, w), world.probe) for w in own])
    return Outcome({"models": stacked(sent, len(own))}, [{"personal": w} for w in own], {"personal": logits})
