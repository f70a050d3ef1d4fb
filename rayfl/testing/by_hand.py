"""A federation for tests: worker and server driven round by round, on tiny data and nets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from rayfl.data import TEST, TRAIN, ClientData, Dataset, FederatedData
from rayfl.engine.base import Plan
from rayfl.engine.inline import Inline
from rayfl.engine.server import Server
from rayfl.engine.travel import RoundResult
from rayfl.engine.worker import Worker
from rayfl.evaluation.score import answer_at_once
from rayfl.methods import Method
from rayfl.methods.base import has_exchange
from rayfl.nets import Architecture, Shape, SplitNet
from rayfl.training import State, Training
from rayfl.training.context import Averaging
from rayfl.training.state import take_apart
from rayfl.transforms import Aggregation, Attack, Transform

# ---- data


def points(*clients: Sequence[tuple[tuple[float, float], int]]) -> FederatedData:
    """Return data of two numbers and two classes: each client's samples (x, class), also its test data."""
    samples = [sample for client in clients for sample in client]
    images = np.array([x for x, _ in samples], np.float32)[:, None, None, :]
    ends = np.cumsum([len(client) for client in clients])
    clients_data = []
    for end, client in zip(ends, clients, strict=True):
        indices = np.arange(end - len(client), end)
        clients_data.append(ClientData(train=indices, val=indices[:0], test=indices))
    return _federated_data(images, [y for _, y in samples], 2, clients_data)


def ragged(
    sizes: Sequence[int] = (12, 22, 16, 5), classes: int = 4, missing: bool = True, val: int = 0
) -> FederatedData:
    """Return clients with these numbers of noisy images, 1x16x16, and 4 test and ``val`` validation images.

    Client i lacks the class i mod ``classes`` if ``missing``.
    """
    rng = np.random.default_rng(5)
    patterns = rng.standard_normal((classes, 1, 16, 16))
    labels: list[int] = []
    clients_data: list[ClientData] = []
    start = 0
    for i, size in enumerate(sizes):
        own = [c for c in range(classes) if not (missing and c == i % classes)]
        labels += [own[k % len(own)] for k in range(size + val + 4)]
        train, held, test = np.split(np.arange(start, start + size + val + 4), [size, size + val])
        clients_data.append(ClientData(train=train, val=held, test=test))
        start += size + val + 4
    images = patterns[labels] + 0.5 * rng.standard_normal((start, 1, 16, 16))
    return _federated_data(images.astype(np.float32), labels, classes, clients_data)


def _federated_data(
    images: np.ndarray, labels: Sequence[int], classes: int, clients_data: Sequence[ClientData]
) -> FederatedData:
    n = len(images)
    origin = np.full(n, TRAIN, np.uint8)
    for client_data in clients_data:
        origin[np.setdiff1d(client_data.test, client_data.train)] = TEST
    dataset = Dataset(
        inputs=images,
        labels=np.array(labels, np.int64),
        domains=np.zeros(n, np.int64),
        origin=origin,
        class_names=tuple(str(c) for c in range(classes)),
        domain_names=("all",),
        mean=(0.0,),
        std=(1.0,),
    )
    return FederatedData(dataset, tuple(clients_data))


# ---- nets


def linear(shape: Shape, classes: int) -> SplitNet:
    """Logits W x with W = 0: entry ``head.weight``."""
    head = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(head.weight)
    return SplitNet(nn.Flatten(), nn.Sequential(), head)


def tiny(shape: Shape, classes: int, width: int = 2) -> SplitNet:
    """A net with BatchNorm and without kinks that trains in a moment, for images."""
    norm = nn.BatchNorm2d(width)
    conv = nn.Sequential(nn.Conv2d(shape[0], width, 5, 3), norm, nn.Softplus(), nn.Flatten())
    features = width * ((shape[1] - 5) // 3 + 1) * ((shape[2] - 5) // 3 + 1)
    return SplitNet(conv, nn.Sequential(nn.Linear(features, 5), nn.Tanh()), nn.Linear(5, classes))


def tiny_wide(shape: Shape, classes: int) -> SplitNet:
    """A net like ``tiny`` with other weights and as many features."""
    return tiny(shape, classes, width=3)


# ---- rounds


@dataclass
class Run:
    """The history of a federation; states are never changed in place, so they are kept without copies."""

    worker: Worker
    server: Server
    results: list[RoundResult] = field(default_factory=list)
    servers: list[State] = field(default_factory=list)  # after each round
    clients: list[dict[int, State]] = field(default_factory=list)  # after each round

    def round(
        self, cohort: Sequence[int], score_splits: Sequence[str] = (), asked: Sequence[int] | None = None
    ) -> None:
        """Train and aggregate a cohort.

        Args:
            cohort: who trains.
            score_splits: splits of the data on which each client is scored right after its training.
            asked: who uploads before the round, if clients do: by default as in a run.
        """
        number, method = len(self.results), self.worker.method
        if has_exchange(method, number):
            if asked is None:
                asked = range(self.worker.data.seen) if method.facts.before == "once" else cohort
            down = self.server.download(asked)
            uploads, found = self.worker.train(number, down, [tuple(asked)], hook="before_round")
            assert not found.bad, found.bad
            self.server.keep_exchange(uploads)
        download = self.server.download(cohort)
        accumulated, result = self.worker.train(number, download, [tuple(cohort)], score_splits)
        assert not result.bad, result.bad
        self.server.step(self.server.build_cohort(result.ids, number), accumulated)
        self.results.append(result)
        self.servers.append(self.server.state)
        self.clients.append(dict(self.worker.states))

    def scores(self, client: int, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return what every view says of images after the last round."""
        down = self.server.download([client]).for_client(client)
        view = self.worker.client(client, len(self.results))
        states = {client: self.worker.state(client, view)}
        if self.worker.method.overrides("personalise"):
            last = max(0, len(self.results) - 1)  # whose learning rate personalising has
            states |= self.worker.personalised_states(last, states, {client: down})
        with torch.no_grad():
            return dict(answer_at_once(self.worker.method.scores(view, states[client], down, x)))

    def values(self) -> dict[str, torch.Tensor]:
        """Return every tensor and number of the newest states, by name, as float64."""
        kept = {"transforms": self.server.memory} if self.server.memory else {}
        state = {"server": {**self.server.state, **kept}, "clients": dict(self.worker.states)}
        _, tensors = take_apart(state)
        return {name: t.double() for name, t in tensors.items()}


def start(
    method: Method,
    data: FederatedData,
    net: Architecture | str | list[Architecture | str] = "rayfl.testing.by_hand.linear",
    execution: Literal["loop", "stacked"] = "loop",
    averaging: Averaging | None = None,
    rounds: int = 1,
    seed: int = 3,
    transforms: Sequence[Transform] = (),
    expected: Callable[[int], float] = float,
    attack: Attack | None = None,
    aggregation: Aggregation | None = None,
    **training: Any,
) -> Run:
    """Build a federation in float64, by default with batches of 8 and lr 0.1."""
    settings = Training(**{"batch_size": 8, "lr": 0.1, "precision": "float64", **training})
    engine = Inline(execution=execution, device="cpu", memory_format="contiguous")
    further: dict[str, Any] = {"averaging": averaging, "transforms": transforms, "expected": expected}
    further |= {"attack": attack, "aggregation": aggregation}
    plan = Plan(method, net, settings, seed, engine, rounds, **further)
    return Run(Worker(plan, data), Server(plan, data))


def federate(
    method: Method,
    data: FederatedData,
    net: Architecture | str | list[Architecture | str] = "rayfl.testing.by_hand.linear",
    cohorts: Sequence[Sequence[int]] | int = 3,
    **options: Any,
) -> Run:
    """Run the rounds of these cohorts, or this number of rounds of all clients."""
    if isinstance(cohorts, int):
        cohorts = [range(len(data.clients))] * cohorts
    run = start(method, data, net, **{"rounds": len(cohorts), **options})
    for cohort in cohorts:
        run.round(cohort)
    return run


def assert_same(
    got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 0
) -> None:
    """Compare tensors by name: bit for bit, or to a tolerance relative to 1 and to the larger value."""
    assert got.keys() == expected.keys()
    for name, value in got.items():
        other = expected[name]
        if tolerance == 0:
            assert torch.equal(value, other), f"{name}: {(value - other).abs().max()}"
        else:
            torch.testing.assert_close(value, other, rtol=tolerance, atol=tolerance, msg=name)
