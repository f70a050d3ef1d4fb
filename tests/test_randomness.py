"""Streams of random numbers: each belongs to its seed, its purpose and its counters, and to nothing else."""

import numpy as np
import torch

from rayfl.methods import FedAvg
from rayfl.randomness import generator, numpy_generator, seed_of
from tests.training.made_up import make_client, smooth_net


def test_a_name_has_one_seed():
    names = [(0, "a"), (1, "a"), (0, "b"), (0, "a", 0), (0, "a", 1), (0, "a", 1, 12), (0, "a", 11, 2)]
    names += [(0, "a", 2, 1), (0, "a", 1, 2), (10, "a"), (0, "a", -1)]
    seeds = [seed_of(*name) for name in names]
    assert len(set(seeds)) == len(names)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seeds == [seed_of(*name) for name in names]
    assert seed_of(np.int64(0), "a", np.int32(1), True) == seed_of(0, "a", 1, 1)


def test_the_bits_of_a_stream_are_those_of_every_version():
    assert seed_of(3, "batches", 1, 2) == 7_509_281_164_172_909_884
    assert generator(3, "batches", 1, 2).initial_seed() == 7_509_281_164_172_909_884
    assert numpy_generator(0, "partition").integers(0, 1000, 5).tolist() == [19, 621, 502, 213, 146]


def drawn(random: torch.Generator) -> float:
    return float(torch.rand((), generator=random, dtype=torch.float64))


def test_what_the_server_draws_depends_on_seed_purpose_and_round():
    found = set()
    for seed in (0, 1):
        method = FedAvg()
        method.seed = seed
        found |= {drawn(method.generator(purpose, round)) for purpose in "ab" for round in (0, 1)}
        assert drawn(method.generator("a", 0)) in found
    assert len(found) == 8


def test_what_a_client_draws_depends_on_seed_purpose_client_and_round():
    net = smooth_net()
    clients = [make_client(net, id=i, round=r, seed=s) for i in (0, 1) for r in (0, 1) for s in (5, 6)]
    found = {drawn(client.generator(purpose)) for client in clients for purpose in "ab"}
    assert len(found) == 16
    assert drawn(clients[0].generator("a")) in found
    method = FedAvg()
    method.seed = 5
    assert drawn(method.generator("a", 0)) not in found
