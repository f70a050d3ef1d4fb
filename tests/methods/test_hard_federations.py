"""Federations that real data make: missing classes, single samples, lone clients, ragged last batches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rayfl.data.dataset import TRAIN, ClientData, Dataset
from rayfl.data.federated import FederatedData
from rayfl.errors import UserError
from rayfl.evaluation import Default
from rayfl.methods import METHODS
from rayfl.running.checks import check_run
from rayfl.testing.by_hand import Run, start
from tests.methods.cases import CASES, net_of

CLASSES = 3
NETS = ["rayfl.testing.by_hand.tiny", "tests.support.by_hand.tiny_of_7"]
"""A net with BatchNorm, and one without."""


@st.composite
def federations(draw: Any) -> tuple[list[list[int]], list[list[int]], str, dict[str, Any]]:
    """Draw the classes of each client's samples, two cohorts, a net, and options of training."""
    labels = st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=6)
    clients = draw(st.lists(labels, min_size=1, max_size=3))
    cohort = st.lists(st.sampled_from(range(len(clients))), min_size=1, unique=True).map(sorted)
    options = {
        "bn_single": draw(st.sampled_from(["refuse", "eval"])),
        "batch_size": draw(st.sampled_from([2, 3, 5])),
        "last_batch": draw(st.sampled_from(["keep", "drop"])),
    }
    return clients, [draw(cohort), draw(cohort)], draw(st.sampled_from(NETS)), options


def data_of(clients: list[list[int]]) -> FederatedData:
    """Return clients with samples of these classes, all of them also tested on."""
    labels = np.array([y for own in clients for y in own], np.int64)
    n = len(labels)
    inputs = np.random.default_rng(n).standard_normal((n, 1, 16, 16)).astype(np.float32)
    ends = np.cumsum([len(own) for own in clients])
    parts = []
    for end, own in zip(ends, clients, strict=True):
        indices = np.arange(end - len(own), end)
        parts.append(ClientData(train=indices, val=indices[:0], test=indices))
    dataset = Dataset(
        inputs=inputs,
        labels=labels,
        domains=np.zeros(n, np.int64),
        origin=np.full(n, TRAIN, np.uint8),
        class_names=tuple(map(str, range(CLASSES))),
        domain_names=("all",),
        mean=(0.0,),
        std=(1.0,),
    )
    return FederatedData(dataset, tuple(parts))


def run_of(name: str, data: FederatedData, net: str, options: dict[str, Any]) -> Run | None:
    """Return the federation of a method, checked as a run is before it starts; None if it is refused."""
    try:
        run = start(
            METHODS[name](**CASES[name].steady), data, net_of(name, net), lr=0.05, rounds=2, **options
        )
        check_run(run.worker.plan, Default(), data)
    except UserError:
        return None
    return run


def works(run: Run, cohorts: list[list[int]]) -> None:
    """Run rounds, and see that all that is kept and every score is finite, whoever was sampled."""
    for cohort in cohorts:
        run.round(cohort)
    odd = [key for key, value in run.values().items() if not value.isfinite().all()]
    assert odd == []
    data = run.worker.data
    x = torch.tensor(data.dataset.inputs).double()
    for client in range(len(data.clients)):
        for view, scores in run.scores(client, x).items():
            if view in run.worker.method.facts.without_loss:  # a class that nobody knows is out of reach
                scores = scores[scores != -math.inf]
            assert scores.isfinite().all(), (client, view)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=10, derandomize=True, database=None)
@given(drawn=federations())
def test_it_works_or_is_refused_before_it_starts(name: str, drawn: Any) -> None:
    clients, cohorts, net, options = drawn
    run = run_of(name, data_of(clients), net, options)
    if run is not None:
        works(run, cohorts)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("execution", ["loop", "stacked"])
def test_clients_of_one_class_and_of_one_sample(name: str, execution: str) -> None:
    """Four clients: of one class, of one sample, with a last batch of one, and one that never trains.

    The net has BatchNorm where the method does not have its own, so ``training.bn_single`` is eval.
    """
    data = data_of([[0, 0, 0, 0], [1], [0, 1, 2, 2, 2], [1, 2]])
    options = {"batch_size": 2, "bn_single": "eval", "execution": execution}
    run = run_of(name, data, NETS[0], options)
    assert run is not None
    works(run, [[0, 1, 2], [1]])
