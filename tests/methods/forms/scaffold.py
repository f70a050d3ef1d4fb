"""SCAFFOLD: Karimireddy et al., ICML 2020, Algorithm 1, option II."""

import torch

from tests.methods.forms.world import Outcome, Weights, World, clip, mean, score, sgd, weights_of


def run(world: World, *, server_lr: float = 1.0) -> Outcome:
    """Train the cohorts with corrected steps, one fit (0) per round; all means are uniform.

    Nothing is drawn.
    """
    net = world.make()
    x = weights_of(net)
    names = [name for name, _ in net.named_parameters()]
    c = {name: torch.zeros_like(x[name]) for name in names}
    own: list[Weights] = [dict(c) for _ in world.clients]  # c_i
    for round, cohort in enumerate(world.cohorts):
        trained = []
        changes = []  # c_i+ - c_i
        for i in cohort:
            data, batches = world.clients[i], world.batches(i, round)
            net.load_state_dict(x)
            optimiser = sgd(world, net)
            for batch in batches:
                optimiser.zero_grad()
                world.loss(net(data.x[batch]), data.y[batch]).backward()
                clip(world, net)
                for name, value in net.named_parameters():
                    assert value.grad is not None
                    value.grad += c[name] - own[i][name]
                optimiser.step()  # y_i <- y_i - eta (g_i(y_i) + c - c_i), with momentum and decay
            y = weights_of(net)
            # without momentum these are K, the number of steps
            steps = sum(sum(world.momentum**k for k in range(j)) for j in range(1, len(batches) + 1))
            scale = 1 / (steps * world.lr) if batches else 0.0
            change = {name: (x[name] - y[name]) * scale - (c[name] if batches else 0) for name in names}
            own[i] = {name: own[i][name] + change[name] for name in names}
            trained.append(y)
            changes.append(change)
        # running statistics: the plain mean, whatever server_lr is
        average = mean(trained)
        x = average | {name: x[name] + server_lr * (average[name] - x[name]) for name in names}
        part = len(cohort) / len(world.clients)
        c = {name: c[name] + part * value for name, value in mean(changes).items()}
    net.load_state_dict(x)
    scores = torch.stack([score(net, world.probe)] * len(world.clients))
    clients = [{"control": state} for state in own]
    return Outcome({"weights": x, "control": c}, clients, {"personal": scores, "global": scores})
