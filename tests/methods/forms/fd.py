"""FD: Jeong et al., arXiv 1811.11479, 2018, Algorithm 1."""

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.methods.forms.world import Outcome, World, class_means, net_of, score, sgd, step, weights_of


def run(world: World, *, gamma: float = 1.0) -> Outcome:
    """Train each client's model on its labels and on what the others last said of its classes.

    A round has one fit. Outputs are means of softmax outputs over a client's samples [C, C]: a row a class.
    """
    classes, count = world.classes, len(world.clients)
    personal = [weights_of(world.make()) for _ in range(count)]
    own = [torch.zeros(classes, classes, dtype=torch.float64) for _ in range(count)]
    outputs, owners = torch.zeros_like(own[0]), torch.zeros(classes, dtype=torch.float64)
    former: set[int] = set()  # whose outputs are in the sum
    for round, cohort in enumerate(world.cohorts):
        means, owned = [], []
        for i in cohort:
            data, net = world.clients[i], net_of(world, personal[i])
            mine = (torch.bincount(data.y, minlength=classes) > 0).to(owners) * (i in former)
            others = owners - mine  # owners of each class but this client
            target = (outputs - own[i] * mine[:, None]) / others.clamp(min=1)[:, None]
            optimiser = sgd(world, net)
            for batch in world.batches(i, round):
                scores, y = net(data.x[batch]), data.y[batch]
                # Open on the page: the mean is over the batch; samples without a target count as 0.
                each: Tensor = -(target[y] * F.log_softmax(scores, 1)).sum(1) * (others[y] > 0)
                step(world, world.loss(scores, y) + gamma * each.mean(), optimiser, net)
            personal[i] = weights_of(net)
            own[i], counts = class_means(score(net, data.x).softmax(1), data.y, classes)
            means.append(own[i])
            owned.append((counts > 0).to(owners))
        outputs, owners, former = torch.stack(means).sum(0), torch.stack(owned).sum(0), set(cohort)
    logits = torch.stack([score(net_of(world, w), world.probe) for w in personal])
    clients = [{"personal": w, "outputs": {"outputs": o}} for w, o in zip(personal, own, strict=True)]
    server = {"outputs": {"outputs": outputs}, "owners": {"owners": owners}}
    return Outcome(server, clients, {"personal": logits})
