"""FedRoD: Chen and Chao, ICLR 2022, Algorithm 1, the linear version."""

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import nn

from tests.methods.forms.world import Outcome, World, clip, mean, score, sgd, weights_of


def chain(net: nn.Module, parts: Sequence[str]) -> nn.Sequential:
    """Return some parts of a net, one after another, under the names that they have in it."""
    return nn.Sequential(OrderedDict((name, net.get_submodule(name)) for name in parts))


def run(world: World, *, balanced: bool = True, head: str = "last_layer") -> Outcome:
    """Train a generic and a personal head on one extractor, one fit (0) per round.

    The server averages extractor and generic head, by samples. Nothing is drawn.
    """
    above = ("head",) if head == "last_layer" else ("fc", "head")
    below = ("conv", "fc", "head")[: -len(above)]
    net = world.make()
    extractor, generic, personal = chain(net, below), chain(net, above), chain(world.make(), above)
    weights = weights_of(net)
    own = [weights_of(personal) for _ in world.clients]  # as the initial generic head
    for round, cohort in enumerate(world.cohorts):
        trained = []
        for i in cohort:
            data = world.clients[i]
            counts = torch.bincount(data.y, minlength=world.classes).to(torch.float64)
            prior = torch.where(counts > 0, counts.log(), -1e9) if balanced else torch.zeros_like(counts)
            net.load_state_dict(weights)
            personal.load_state_dict(own[i])
            optimiser = sgd(world, net, personal)
            for batch in world.batches(i, round):
                optimiser.zero_grad()
                z, y = extractor(data.x[batch]), data.y[batch]
                logits = generic(z)
                balanced_risk = world.loss(logits + prior, y)  # balanced softmax, with gamma = 1
                # the empirical risk of the sum of both heads trains the personal one alone
                empirical_risk = world.loss(logits.detach() + personal(z.detach()), y)
                (balanced_risk + empirical_risk).backward()
                clip(world, net, personal)
                optimiser.step()
            own[i] = weights_of(personal)
            trained.append(weights_of(net))
        weights = mean(trained, world.samples(cohort))
    net.load_state_dict(weights)
    common, z = score(net, world.probe), score(extractor, world.probe)
    scores = []
    for state in own:
        personal.load_state_dict(state)
        scores.append(common + score(personal, z))
    logits = {"personal": torch.stack(scores), "global": torch.stack([common] * len(own))}
    return Outcome({"weights": weights}, [{"personal": state} for state in own], logits)
