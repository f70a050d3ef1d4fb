"""FedKD: C. Wu et al., Nature Communications 13, 2032, 2022, Algorithm 1."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.methods.forms.world import Outcome, World, mean, net_of, score, sgd, step, weights_of


def truncated(change: Tensor, energy: float) -> Tensor:
    """Return what the server gets of a change: the fewest directions that have this share of its energy."""
    if change.ndim < 2:
        return change
    matrix = change.flatten(1)
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    squares = s.square().cumsum(0)
    rank = int((squares < energy * squares[-1]).sum()) + 1 if squares[-1] > 0 else 0
    if rank * (matrix.shape[0] + matrix.shape[1] + 1) >= matrix.numel():
        return change  # whole, because its factors would not be less
    return ((u[:, :rank] * s[:rank]) @ v[:rank]).reshape(change.shape)


def run(world: World, *, T_start: float = 0.95, T_end: float = 0.98) -> Outcome:
    """Train each client's mentor and the mentee together; mentees' changes are truncated and averaged.

    A round has one fit: both models see the same batches and take their steps at once. ``make("mentee")``
    is the mentee, ``make(seed=i)`` client i's mentor. ``draw("W_h", client, 0, 0, 0)`` gives W_h as it
    starts, [features of the mentor, features of the mentee].
    """
    count, last = len(world.clients), max(1, len(world.cohorts) - 1)
    weights = weights_of(world.make("mentee"))
    mentors = [weights_of(world.make(seed=i)) for i in range(count)]
    maps = [{"weight": world.draw("W_h", i, 0, 0, 0)} for i in range(count)]
    for round, cohort in enumerate(world.cohorts):
        received = []
        for i in cohort:
            data, mentor, mentee = (
                world.clients[i],
                net_of(world, mentors[i]),
                net_of(world, weights, "mentee"),
            )
            w_h = nn.Linear(*reversed(maps[i]["weight"].shape), bias=False, dtype=torch.float64)
            w_h.load_state_dict(maps[i])
            optimiser = sgd(world, mentor, mentee, w_h)
            for batch in world.batches(i, round):
                x, y = data.x[batch], data.y[batch]
                z, z_mentee = mentor.fc(mentor.conv(x)), mentee.fc(mentee.conv(x))
                p, p_mentee = mentor.head(z), mentee.head(z_mentee)
                ce, ce_mentee = world.loss(p, y), world.loss(p_mentee, y)
                c = (ce + ce_mentee).detach().clamp(min=0.01)
                # Open on the page: W_h is in both losses, as in the paper, and learns from their sum.
                loss = ce + (world.divergence(p_mentee, p) + F.mse_loss(z, w_h(z_mentee.detach()))) / c
                loss_mentee = (
                    ce_mentee + (world.divergence(p, p_mentee) + F.mse_loss(w_h(z_mentee), z.detach())) / c
                )
                # Open on the page: W_h is clipped as a net of its own.
                step(world, loss + loss_mentee, optimiser, mentor, mentee, w_h)
            mentors[i], maps[i] = weights_of(mentor), weights_of(w_h)
            energy = T_start + (T_end - T_start) * round / last
            after = weights_of(mentee)
            received.append({n: value + truncated(after[n] - value, energy) for n, value in weights.items()})
        weights = mean(received)
    logits = {
        "personal": torch.stack([score(net_of(world, m), world.probe) for m in mentors]),
        "global": torch.stack([score(net_of(world, weights, "mentee"), world.probe)] * count),
    }
    clients = [{"personal": m, "W_h": w} for m, w in zip(mentors, maps, strict=True)]
    return Outcome({"weights": weights}, clients, logits)
