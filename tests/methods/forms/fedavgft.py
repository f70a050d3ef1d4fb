"""FedAvg whose model every client trains on its own data before it is scored."""

import torch
from torch import nn

from tests.methods.forms import fedavg
from tests.methods.forms.world import Outcome, World, net_of, score, sgd, step


def run(world: World, *, epochs: int = 1, lr: float | None = None, part: str = "all") -> Outcome:
    """Train as FedAvg does, then fine-tune for all clients, in a round after the last one, fit 0."""
    outcome, scores = fedavg.run(world), []
    for i, data in enumerate(world.clients):
        net = net_of(world, outcome.server["weights"])
        chosen = {"all": net, "head": net.head, "body": nn.ModuleList([net.conv, net.fc])}[part]
        net.requires_grad_(False).train(part != "head")  # below a head that is trained nothing moves
        optimiser = sgd(world, chosen.requires_grad_(True))
        optimiser.param_groups[0]["lr"] = lr or world.lr
        for epoch in world.order(i, len(world.cohorts), 0)[:epochs]:
            for batch in epoch:
                step(world, world.loss(net(data.x[batch]), data.y[batch]), optimiser, net)
        scores.append(score(net, world.probe))
    outcome.logits["finetuned"] = torch.stack(scores)
    return outcome
