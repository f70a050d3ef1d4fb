"""FedALA: J. Zhang et al., AAAI 2023, Algorithm 1."""

import torch

from tests.methods.forms.world import (
    Outcome,
    Weights,
    World,
    load,
    mean,
    net_of,
    score,
    sgd,
    step,
    weights_of,
)


def mix(received: Weights, own: Weights, share: Weights) -> Weights:
    """Return the start of a fit, eq. 3 to 5: the received model, its upper layers mixed with the own ones."""
    return received | {name: own[name] + (received[name] - own[name]) * share[name] for name in own}


def run(
    world: World,
    *,
    eta: float = 1.0,
    rand_percent: float = 80.0,
    layer_idx: int = 2,
    threshold: float = 0.1,
    num_pre_loss: int = 10,
) -> Outcome:
    """Train as FedAvg does, from a mixture of the received and the own model; W is learned before.

    A round has one fit, that of the net. ``draw("subset", client, round, 0, p)`` gives what pass p over
    W sees, int64 [batches, size]: one batch a row, places among the client's samples, -1 fills up.
    """
    weights = weights_of(world.make())
    upper = [name for name, _ in world.make().named_parameters()][-layer_idx:]
    own = [{name: weights[name] for name in upper} for _ in world.clients]
    share = [{name: torch.ones_like(weights[name]) for name in upper} for _ in world.clients]
    before = [0] * len(world.clients)  # rounds in which a client has trained

    def learn(i: int, round: int) -> None:
        data, net, losses = world.clients[i], world.make(), []
        parameters = dict(net.named_parameters())
        for p in range(100 if before[i] == 1 else 1):
            rows = world.draw("subset", i, round, 0, p)
            size, total = int((rows >= 0).sum()), 0.0  # open on the page: how the share of samples is rounded
            assert size - 1 < rand_percent * len(data.y) / 100 <= size or size == 2
            for row in rows:
                batch = row[row >= 0]
                load(net, mix(weights, own[i], share[i]))  # batch statistics count: train mode
                loss = world.loss(net(data.x[batch]), data.y[batch])
                slopes = torch.autograd.grad(loss, [parameters[name] for name in upper])
                for name, slope in zip(upper, slopes, strict=True):  # eq. 6, without clip
                    by = slope * (weights[name] - own[i][name])
                    share[i][name] = (share[i][name] - eta * by).clamp(0, 1)
                total += loss.item() / len(rows)
            losses.append(total)  # the mean over batches, as the page says
            # Open on the page: as in the public code, more passes than num_pre_loss, deviation over n.
            last = torch.tensor(losses[-num_pre_loss:], dtype=torch.float64)
            if len(losses) > num_pre_loss and last.std(correction=0) < threshold:
                break

    for round, cohort in enumerate(world.cohorts):
        trained = []
        for i in cohort:
            if before[i]:
                learn(i, round)
            data, net = world.clients[i], net_of(world, mix(weights, own[i], share[i]))
            optimiser = sgd(world, net)
            for batch in world.batches(i, round):
                step(world, world.loss(net(data.x[batch]), data.y[batch]), optimiser, net)
            trained.append(weights_of(net))
            own[i] = {name: trained[-1][name] for name in upper}
            before[i] += 1
        weights = mean(trained, world.samples(cohort))
    nets = [net_of(world, mix(weights, o, s)) for o, s in zip(own, share, strict=True)]
    logits = {
        "personal": torch.stack([score(net, world.probe) for net in nets]),
        "global": torch.stack([score(net_of(world, weights), world.probe)] * len(nets)),
    }
    clients = [{"own": o, "W": s} for o, s in zip(own, share, strict=True)]
    return Outcome({"weights": weights}, clients, logits)
