"""Streams of random numbers: each belongs to its seed, its purpose and its counters, and to nothing else."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rayfl.data import IID, FederatedData, Pachinko, Synthetic
from rayfl.data.sets.cifar import with_noise
from rayfl.data.sets.folders import divide_randomly
from rayfl.methods import DCPFL
from rayfl.methods.fedios import orthonormal_matrix
from rayfl.randomness import generator, numpy_generator, seed_of
from rayfl.training import Client, State
from tests.support.datasets import assign, make_dataset
from tests.support.federations import small
from tests.support.nets import make_client, make_context, smooth_net


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


def test_what_server_and_clients_draw_depends_on_seed_purpose_and_round():
    """And on the client."""
    net, both = smooth_net(), (0, 1)
    contexts = [make_context(net, seed=seed) for seed in both]
    clients = [make_client(net, id=i, round=r, seed=s) for i in both for r in both for s in both]
    server = [drawn(context.generator(purpose, r)) for context in contexts for purpose in "ab" for r in both]
    client = [drawn(each.generator(purpose)) for each in clients for purpose in "ab"]
    assert len({*server, *client}) == 8 + 16
    assert drawn(contexts[0].generator("a", 0)) == server[0]
    assert drawn(clients[0].generator("a")) == client[0]


Asked = list[tuple[int | str, ...]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Every (seed, purpose, counters) of which a stream is asked for."""
    names: Asked = []

    def record(seed: int, purpose: str, *counters: int) -> int:
        names.append((int(seed), purpose, *map(int, counters)))
        return seed_of(seed, purpose, *counters)

    for module in ("randomness", "training.client", "training.net", "engine.worker"):
        monkeypatch.setattr(f"rayfl.{module}.seed_of", record)
    return names


class Draws(DCPFL):
    """Draws of every kind that a client can."""

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        """Draw, and train."""
        client.generator("own")
        client.random_weights()
        return await super().local_update(client, state, down)


def test_the_names_of_the_streams_of_a_run(tmp_path: Path, asked: Asked):
    """Another name, or counters in another order, would be another experiment under the same seed."""
    data = Synthetic(train=120, test=60, val_fraction=0.2, seed=5)
    few: dict[str, Any] = {"clients": 3, "rounds": 2, "participation": 1.0, "seed": 7}
    small(tmp_path / "run", method=Draws(num_virtual=30), data=data, **few).run()
    both = [(client, round) for client in range(3) for round in range(2)]
    wanted = {(5, "synthetic"), (5, "synthetic noise"), (5, "partition"), (7, "init")}
    wanted |= {(5, "validation", client) for client in range(3)}
    wanted |= {(7, "init", client + 1) for client in range(3)}
    wanted |= {(7, "cohort", round) for round in range(2)}
    wanted |= {
        (7, f"server {what}", round) for what in ("order", "calibration", "virtual") for round in range(2)
    }
    wanted |= {(7, "client own", *who) for who in both}
    wanted |= {(7, what, *who, 0) for what in ("batches", "noise") for who in both}
    wanted |= {(7, "noise", *who, -1) for who in both}
    assert set(asked) == wanted


def test_the_names_of_the_streams_of_data_and_bases(asked: Asked):
    """Each with the seed that it is given; the partition of a superclass with its own, not the data's."""
    dataset = make_dataset([6, 6], [2, 2], domains=2)
    divide_randomly(dataset, 3)
    assert asked == [(3, "division of d0"), (3, "division of d1")]
    asked.clear()
    clients_data = assign(IID(), dataset, 2)
    with_noise(FederatedData(dataset, tuple(clients_data), {}), 9.0, 4)
    assert set(asked) == {(4, "image noise", 0), (4, "image noise", 1)}
    asked.clear()
    Pachinko(seed=6).assign(replace(dataset, superclasses=dataset.labels), 2, np.random.default_rng(0))
    orthonormal_matrix("qr", 3, 8)
    assert asked == [(6, "pachinko"), (8, "projections")]
