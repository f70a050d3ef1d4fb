"""What rayfl draws at random, for forms: functions of (run, world, client, round, fit, step)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor, nn

from rayfl.methods import fedcp
from rayfl.methods.partialfed import layers_of
from rayfl.nets import ffa_layers
from rayfl.randomness import generator, seed_of
from rayfl.testing.by_hand import Run
from rayfl.training import dropout, noise
from tests.methods.forms.world import World

KEYS: dict[tuple[int, int, int], Tensor] = {}
"""Of every fit of the newest run: the key of each step, by which it draws."""

NORMALS: list[tuple[int, Tensor]] = []
"""What ``torch.randn`` has drawn in the newest run: round and numbers."""

STATES: list[Any] = []
"""The server's state before each round of the newest run."""


def subset(run: Run, world: World, client: int, round: int, fit: int, step: int) -> Tensor:
    """Return FedALA's samples for a pass over W, a batch a row."""
    batches = world.batches(client, round, 1 + step)
    return nn.utils.rnn.pad_sequence(batches, batch_first=True, padding_value=-1)


def first_batch(run: Run, world: World, client: int, round: int, *_: int) -> Tensor:
    """Return the first batch of a round's first fit."""
    return world.batches(client, round)[0]


def peer(run: Run, world: World, client: int, round: int, fit: int, step: int) -> Tensor:
    """Return whose model a client of FedFomo receives by lot in a place, -1 where none is drawn."""
    method, state = run.server.method, STATES[round]
    received = list(method.download_for(state, client)["models"])
    draws = generator(state["draw"], "models", client)
    by_lot = torch.rand(len(received), generator=draws) < method.epsilon - round * method.epsilon_decay
    return torch.tensor(received[step] if by_lot[step] else -1)


def mapping(run: Run, world: World, client: int, *_: int) -> Tensor:
    """Return FedKD's first map of the mentee's features to the mentor's."""
    found: Tensor = run.worker.method.init_client(run.worker.client(client, 0))["map"]["weight"]
    return found


def server_order(run: Run, world: World, client: int, round: int, *_: int) -> Tensor:
    """Return the order of FedGH's server."""
    return torch.randperm(len(world.cohorts[round]), generator=run.server.context.generator("order", round))


def basis(run: Run, *_: Any) -> Tensor:
    """Return the numbers of which FediOS makes its projections."""
    d = run.worker.client(0, 0).net.module.head.in_features
    return torch.randn(d, d, dtype=torch.float64, generator=generator(run.worker.plan.seed, "projections"))


def context(run: Run, world: World, client: int, *_: int) -> Tensor:
    """Return FedCP's first context of a client."""
    found: Tensor = run.worker.method.init_client(run.worker.client(client, 0))["context"]
    return found


def gumbel_pair(run: Run, world: World, client: int, round: int, fit: int, step: int) -> Tensor:
    """Return FedCP's noise of a step."""
    batch = world.batches(client, round, fit)[step]
    d = run.worker.client(0, 0).net.module.head.in_features
    key = noise.split(KEYS[client, round, fit][step], 0)
    return fedcp.gumbel_noise(key, len(batch), torch.empty(0, d, dtype=torch.float64))


def gumbel_layers(run: Run, world: World, client: int, round: int, fit: int, step: int) -> Tensor:
    """Return PartialFed's noise of a step."""
    layers = len(layers_of(run.worker.client(0, 0).net))
    u = noise.uniform(KEYS[client, round, 1][step], (layers, 2)).double() + 2.0**-25
    return -(-u.log()).log()


def prior(run: Run, *_: Any) -> Tensor:
    """Return pFedVEM's first mean, the bias last."""
    found = run.server.method.init_server(run.server.context)["head"]
    return torch.column_stack([found["head.weight"], found["head.bias"]])


def of_heads(fit: int) -> Any:
    """Return the draws of pFedVEM's heads in one of its fits."""

    def draw(run: Run, world: World, client: int, round: int, _: int, step: int) -> Tensor:
        shape = tuple(run.server.state["head"]["head.weight"].shape)
        key = KEYS[client, round, fit][step]
        samples = []
        for k in range(run.server.method.mc_samples):
            each = [
                noise.normal(noise.split(noise.split(key, k), i), s) for i, s in enumerate((shape, shape[:1]))
            ]
            samples.append(torch.column_stack(each).double())
        return torch.stack(samples)

    return draw


def virtual(run: Run, world: World, _: int, round: int, *__: int) -> Tensor:
    """Return the noise of DC-PFL's virtual features: of one class after the other, as rayfl has drawn it."""
    return torch.cat([drawn for place, drawn in NORMALS if place == round])


def shuffle(run: Run, world: World, _: int, round: int, __: int, epoch: int) -> Tensor:
    """Return the order of DC-PFL's virtual features in an epoch."""
    order = run.server.context.generator("calibration", round)
    return [torch.randperm(run.server.method.num_virtual, generator=order) for _ in range(epoch + 1)][-1]


def ffa(run: Run, key: Tensor) -> Iterator[tuple[int, list[Tensor]]]:
    """Yield the channels of each layer of FedFA, and the keys by which it draws in a step."""
    keys = (noise.fold(key, dropout._MASK_PURPOSE + k) for k in count())
    for layer in ffa_layers(run.worker.net.module).values():
        yield len(layer.mean), list(islice(keys, 3))


def augment(run: Run, world: World, client: int, round: int, fit: int, step: int) -> Tensor:
    """Return the numbers by which FedFA's layers augment a batch or not."""
    key = KEYS[client, round, fit][step]
    return torch.stack([noise.uniform(keys[0], ()) for _, keys in ffa(run, key)])


def statistics(run: Run, world: World, client: int, round: int, fit: int, step: int) -> Tensor:
    """Return the noise of FedFA's statistics in a step."""
    rows, found = len(world.batches(client, round, fit)[step]), []
    for channels, (_, *keys) in ffa(run, KEYS[client, round, fit][step]):
        found.append(torch.stack([noise.normal(key, (rows, channels)).double() for key in keys], 1))
    return torch.cat(found, 2)


def features(run: Run, world: World, client: int, round: int, fit: int, step: int) -> Tensor:
    """Return the noise of FedSR's features in a step."""
    rows, z = len(world.batches(client, round, fit)[step]), run.worker.net.module.head.in_features
    return noise.normal(KEYS[client, round, fit][step], (rows, z)).double()


def at_test(run: Run, *_: Any) -> Tensor:
    """Return the noise of FedSR's scores."""
    method, z = run.worker.method, run.worker.net.module.head.in_features
    key = torch.tensor(seed_of(run.worker.context.seed, "features at evaluation"))
    return torch.stack([noise.normal(noise.split(key, k), (z,)) for k in range(method.test_samples)]).double()
