"""Counter-based randomness: (seed, purpose, counters) name a stream, and nothing else decides its bits.

No part of rayfl draws from a global generator, so what a client draws does not depend on which process it
runs in, on the other clients, or on whether the run was interrupted.
"""

import hashlib

import numpy as np
import torch


def seed_of(seed: int, purpose: str, *counters: int) -> int:
    """Return a 63-bit seed that belongs to this stream alone.

    Args:
        seed: the run's seed (or the data's).
        purpose: what is drawn, such as ``"batches"``, ``"cohort"`` or ``"partition"``.
        counters: client, round, number of the fit: whatever tells one stream of a purpose from another.
    """
    text = "/".join([str(int(seed)), purpose, *(str(int(c)) for c in counters)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def generator(seed: int, purpose: str, *counters: int) -> torch.Generator:
    """Return a fresh CPU torch generator for the stream.

    Examples:
        >>> import torch
        >>> from rayfl.randomness import generator
        >>> draws = [torch.rand(2, generator=generator(0, "noise", client)) for client in (3, 3, 4)]
        >>> bool((draws[0] == draws[1]).all()), bool((draws[0] == draws[2]).any())
        (True, False)
    """
    return torch.Generator().manual_seed(seed_of(seed, purpose, *counters))


def numpy_generator(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    """Return a fresh NumPy generator for the stream (Philox, whose bits are the same on every platform)."""
    return np.random.Generator(np.random.Philox(seed_of(seed, purpose, *counters)))
