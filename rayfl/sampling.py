"""Who trains in a round."""

from __future__ import annotations

import math

import torch

from rayfl.randomness import generator


def uniform(round: int, clients: int, participation: float, seed: int) -> list[int]:
    """Return the clients sampled in a round, ascending: uniform, without replacement, at least one.

    Args:
        round: from 0.
        clients: how many may train: those with the first numbers.
        participation: the share of them that does.
        seed: the run's seed.
    """
    size = max(1, math.floor(participation * clients + 1e-9))
    order = torch.randperm(clients, generator=generator(seed, "cohort", round))
    return sorted(order[:size].tolist())
