"""FedBABU: Oh, Kim and Yun, ICLR 2022, Algorithm 1."""

import torch

from tests.methods.forms.world import Outcome, World, mean, net_of, score, train, weights_of


def run(world: World, *, tune_epochs: int = 5, cut: str = "last_layer") -> Outcome:
    """Train and average the body under the first classifier; every client tunes the whole net at the end.

    Fit 0 of a round is that of the body, fit 0 of the round after the last one is tuning.
    """
    classifier = ("head",) if cut == "last_layer" else ("fc", "head")
    body = {n: v for n, v in weights_of(world.make()).items() if n.split(".")[0] not in classifier}
    for round, cohort in enumerate(world.cohorts):
        trained = []
        for i in cohort:
            net = net_of(world, body)
            for part in classifier:  # frozen; its BatchNorm, if any, is in train mode, as the page says
                getattr(net, part).requires_grad_(False)
            train(world, net, world.clients[i], world.batches(i, round))
            trained.append({n: v for n, v in weights_of(net).items() if n in body})
        body = mean(trained, world.samples(cohort))
    tuned = []
    for i, data in enumerate(world.clients):
        net = net_of(world, body)
        passes = world.order(i, len(world.cohorts), 0)[:tune_epochs]
        train(world, net, data, [batch for epoch in passes for batch in epoch])
        tuned.append(score(net, world.probe))
    common = torch.stack([score(net_of(world, body), world.probe)] * len(tuned))
    return Outcome({"weights": body}, [{} for _ in tuned], {"personal": torch.stack(tuned), "global": common})
