"""FML: T. Shen et al., arXiv 2006.16765, 2020, Algorithm 1."""

import torch

from tests.methods.forms.world import Outcome, World, mean, net_of, score, sgd, step, weights_of


def run(world: World, *, alpha: float = 0.5, beta: float = 0.5, init: str = "independent") -> Outcome:
    """Train each client's private model and the meme together; the server averages memes.

    A round has one fit: both models see the same batches and take their steps at once. ``make("meme")``
    is the meme, ``make(seed=i)`` client i's private model, or ``make()`` if they start from common weights.
    """
    count = len(world.clients)
    weights = weights_of(world.make("meme"))
    private = [
        weights_of(world.make(seed=i) if init == "independent" else world.make()) for i in range(count)
    ]
    for round, cohort in enumerate(world.cohorts):
        memes = []
        for i in cohort:
            data, own, meme = world.clients[i], net_of(world, private[i]), net_of(world, weights, "meme")
            optimiser = sgd(world, own, meme)
            for batch in world.batches(i, round):
                x, y = data.x[batch], data.y[batch]
                p, m = own(x), meme(x)
                private_loss = alpha * world.loss(p, y) + (1 - alpha) * world.divergence(m, p)
                meme_loss = beta * world.loss(m, y) + (1 - beta) * world.divergence(p, m)
                step(world, private_loss + meme_loss, optimiser, own, meme)
            private[i] = weights_of(own)
            memes.append(weights_of(meme))
        weights = mean(memes)
    logits = {
        "personal": torch.stack([score(net_of(world, p), world.probe) for p in private]),
        "global": torch.stack([score(net_of(world, weights, "meme"), world.probe)] * count),
    }
    return Outcome({"weights": weights}, [{"personal": p} for p in private], logits)
