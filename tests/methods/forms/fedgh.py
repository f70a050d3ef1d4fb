"""FedGH: Yi et al., ACM Multimedia 2023, Algorithm 1."""

import torch
from torch.nn import functional as F

from tests.methods.forms.world import (
    Outcome,
    World,
    class_means,
    feature,
    net_of,
    score,
    sgd,
    step,
    weights_of,
)


def run(world: World, *, server_lr: float = 0.01) -> Outcome:
    """Train each client's extractor with the global header; the server trains the header on class means.

    A round has one fit. ``draw("order", -1, round, 0, 0)`` gives the order of the server's steps, int64
    [cohort]: places in the cohort.
    """
    head = world.make().head  # the server's
    personal = [weights_of(world.make()) for _ in world.clients]
    for round, cohort in enumerate(world.cohorts):
        uploads = []
        for i in cohort:
            data, net = world.clients[i], net_of(world, personal[i])
            net.head.load_state_dict(head.state_dict())
            optimiser = sgd(world, net)
            for batch in world.batches(i, round):
                step(world, world.loss(net(data.x[batch]), data.y[batch]), optimiser, net)
            personal[i] = weights_of(net)
            uploads.append(class_means(feature(net, data.x), data.y, world.classes))
        optimiser = torch.optim.SGD(head.parameters(), server_lr)  # no momentum, weight decay or clip
        for place in world.draw("order", -1, round, 0, 0).tolist():
            means, counts = uploads[place]
            for c in counts.nonzero()[:, 0]:  # open on the page: a client's classes ascend
                optimiser.zero_grad()
                F.cross_entropy(head(means[c]), c).backward()
                optimiser.step()
    logits = torch.stack([score(net_of(world, w), world.probe) for w in personal])
    server = {"head": {f"head.{name}": value for name, value in weights_of(head).items()}}
    return Outcome(server, [{"personal": w} for w in personal], {"personal": logits})
