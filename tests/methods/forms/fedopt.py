"""FedOpt: Reddi et al., ICLR 2021, Algorithm 2; FedAvgM: Hsu et al., arXiv 1909.06335, 2019."""

import torch

from tests.methods.forms.world import Outcome, World, mean, score, train, weights_of


def run(
    world: World,
    *,
    rule: str = "adam",
    server_lr: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 0.001,
) -> Outcome:
    """Train the cohorts, one fit (0) per round; the server steps along their mean change, by samples.

    Nothing is drawn.
    """
    net = world.make()
    x = weights_of(net)
    names = [name for name, _ in net.named_parameters()]
    m = {name: torch.zeros_like(x[name]) for name in names}
    v = {name: torch.full_like(x[name], tau**2) for name in names}
    for round, cohort in enumerate(world.cohorts):
        trained = []
        for i in cohort:
            net.load_state_dict(x)
            train(world, net, world.clients[i], world.batches(i, round))
            trained.append(weights_of(net))
        average = mean(trained, world.samples(cohort))
        for name in names:  # running statistics stay at their mean
            change = average[name] - x[name]
            square = change**2
            if rule == "momentum":  # FedAvgM
                m[name] = beta1 * m[name] + change
                average[name] = x[name] + server_lr * m[name]
                continue
            m[name] = beta1 * m[name] + (1 - beta1) * change
            if rule == "adagrad":
                v[name] = v[name] + square
            elif rule == "yogi":
                v[name] = v[name] - (1 - beta2) * square * (v[name] - square).sign()
            else:
                v[name] = beta2 * v[name] + (1 - beta2) * square
            average[name] = x[name] + server_lr * m[name] / (v[name].sqrt() + tau)
        x = average
    net.load_state_dict(x)
    scores = torch.stack([score(net, world.probe)] * len(world.clients))
    server = {"weights": x, "m": m} | ({} if rule == "momentum" else {"v": v})
    return Outcome(server, [{} for _ in world.clients], {"personal": scores, "global": scores})
