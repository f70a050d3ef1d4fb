"""FedRep: Collins et al., ICML 2021, Algorithm 1."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tests.methods.forms.world import Outcome, Samples, World, clip, mean, score, sgd, weights_of


def fit(world: World, net: nn.Module, parts: Sequence[str], data: Samples, batches: list[Tensor]) -> None:
    """Train some parts of a net; the others are frozen and in eval mode, so their BatchNorm stands still."""
    for name, part in net.named_children():
        part.requires_grad_(name in parts).train(name in parts)
    optimiser = sgd(world, net)
    for batch in batches:
        net.zero_grad()  # also what an earlier fit has left at parts that are frozen now
        world.loss(net(data.x[batch]), data.y[batch]).backward()
        clip(world, net)
        optimiser.step()


def run(world: World, *, personal: str = "last_layer", head_epochs: int = 10) -> Outcome:
    """Train the classifiers of the cohorts, then the representation; the server averages it by samples.

    Fits in a round: 0 the classifier, 1 the representation. Nothing is drawn. ``world.order`` has to have
    `head_epochs` epochs for fit 0; those beyond are not used.
    """
    head = ("head",) if personal == "last_layer" else ("fc", "head")
    net = world.make()
    body = [name for name, _ in net.named_children() if name not in head]
    start = weights_of(net)
    shared = {name: value for name, value in start.items() if name.split(".")[0] in body}
    own = [{name: value for name, value in start.items() if name not in shared} for _ in world.clients]
    for round, cohort in enumerate(world.cohorts):
        trained = []
        for i in cohort:
            data = world.clients[i]
            net.load_state_dict(shared | own[i])
            passes = world.order(i, round, 0)
            if len(passes) < head_epochs:
                raise ValueError(f"fit 0 needs {head_epochs} epochs, the order has {len(passes)}")
            # h_i: tau steps on the received representation
            fit(world, net, head, data, [batch for epoch in passes[:head_epochs] for batch in epoch])
            # phi_i: the representation below the new classifier
            fit(world, net, body, data, world.batches(i, round, 1))
            result = weights_of(net)
            own[i] = {name: result[name] for name in own[i]}
            trained.append({name: result[name] for name in shared})
        shared = mean(trained, world.samples(cohort))
    scores = []
    for classifier in own:
        net.load_state_dict(shared | classifier)
        scores.append(score(net, world.probe))
    clients = [{"personal": classifier} for classifier in own]
    return Outcome({"weights": shared}, clients, {"personal": torch.stack(scores)})
