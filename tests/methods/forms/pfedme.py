"""pFedMe: Dinh, Tran, Nguyen, NeurIPS 2020, Algorithm 1."""

import torch

from tests.methods.forms.world import Outcome, World, mean, net_of, score, weights_of


def run(
    world: World, *, lam: float = 15.0, K: int = 5, personal_lr: float = 1.0, beta: float = 1.0
) -> Outcome:
    """Take K steps with θ on each batch, move the client's w towards θ; the server averages the w.

    A round has one fit. Steps have no momentum, weight decay or clip, whatever the world has.
    """
    weights = weights_of(world.make())
    personal = [weights_of(world.make()) for _ in world.clients]
    trainable = [name for name, _ in world.make().named_parameters()]
    for round, cohort in enumerate(world.cohorts):
        copies = []
        for i in cohort:
            data, theta = world.clients[i], net_of(world, weights)
            w = {name: weights[name].clone() for name in trainable}
            optimiser = torch.optim.SGD(theta.parameters(), personal_lr * world.lr)
            for batch in world.batches(i, round):
                for _ in range(K):  # eq. 7: f(θ) + λ/2 ‖θ − w‖²
                    distance = sum((p - w[name]).square().sum() for name, p in theta.named_parameters())
                    loss = world.loss(theta(data.x[batch]), data.y[batch]) + lam / 2 * distance
                    optimiser.zero_grad()
                    loss.backward()
                    optimiser.step()
                for name, p in theta.named_parameters():  # eq. 8: w ← w − η λ (w − θ)
                    w[name] = w[name] - world.lr * lam * (w[name] - p.detach())
            personal[i] = weights_of(theta)
            copies.append(personal[i] | w)  # w has no statistics of its own: θ's travel
        average = mean(copies, world.samples(cohort))
        # The last line of the algorithm box: w ← (1 − β) w + β mean; statistics are the mean's.
        weights = average | {n: (1 - beta) * weights[n] + beta * average[n] for n in trainable}
    trained = {i for cohort in world.cohorts for i in cohort}
    scored = [theta if i in trained else weights for i, theta in enumerate(personal)]
    logits = {
        "personal": torch.stack([score(net_of(world, theta), world.probe) for theta in scored]),
        "global": torch.stack([score(net_of(world, weights), world.probe)] * len(scored)),
    }
    return Outcome({"weights": weights}, [{"personal": theta} for theta in personal], logits)
