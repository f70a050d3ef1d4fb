"""The tables of docs/parity.md: how far rayfl's methods are from independent forms.

``python -m docs.parity_page`` computes them anew, in about two minutes, and writes each below its marker,
``<!-- numbers: NAME -->``.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import ceil, log10
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from docs.results_page import MARKER, markdown
from rayfl.data import FederatedData
from rayfl.settings.description import display_name
from rayfl.training import Exponential
from tests.methods.forms.cases import CASES
from tests.methods.forms.parity import OTHER_LOSS, SETTINGS, SIZES, Setting, compare
from tests.methods.forms.world import World

PAGE = Path(__file__).parent / "parity.md"
BASIC = [name for name in CASES if " " not in name]
EXECUTIONS = ("loop", "stacked")


def bound(values: Iterable[float]) -> str:
    """Return the power of ten that is not below any of the differences."""
    largest = max(values)
    return f"1e{ceil(log10(largest))}" if largest else "0"


@contextmanager
def keeping_momentum(world: World) -> Iterator[None]:
    """Let SGD go on with the momentum that the client had last, as ``optimiser_state: kept`` does.

    A fit goes on from the one of the round before that had parameters of the same shapes, in their order.
    """
    kept: dict[Any, list[Any]] = {}
    fits: Counter[Any] = Counter()

    class Kept(torch.optim.SGD):
        key: Any = None

        def step(self, closure: Any = None) -> None:
            parameters = [p for group in self.param_groups for p in group["params"]]
            if self.key is None:  # by now a form has asked for the client's batches
                client, round = world.at
                shapes = tuple(p.shape for p in parameters)
                self.key = client, shapes, fits[client, round, shapes]
                fits[client, round, shapes] += 1
                for parameter, momentum in zip(parameters, kept.get(self.key, ())):
                    self.state[parameter]["momentum_buffer"] = momentum
            super().step()
            if self.defaults["momentum"]:  # servers of forms have none
                kept[self.key] = [self.state[p].get("momentum_buffer") for p in parameters]

    with mock.patch("torch.optim.SGD", Kept):
        yield


@contextmanager
def sparing_single_samples(world: World) -> Iterator[None]:
    """Let BatchNorm treat a batch of one sample as in eval mode, which is ``bn_single: eval``."""
    norm = nn.modules.batchnorm._BatchNorm
    forward = norm.forward

    def spared(self: Any, x: Tensor) -> Tensor:
        training = self.training
        found: Tensor = forward(self.train(training and len(x) > 1), x)
        self.train(training)
        return found

    with mock.patch.object(norm, "forward", spared):
        yield


def without_samples(data: FederatedData) -> FederatedData:
    """Take class 3 from clients 0 and 2, and all but one sample from client 2."""
    labels, clients = data.dataset.labels, list(data.clients)
    for i, most in ((0, None), (2, 1)):
        own = clients[i].train
        clients[i] = replace(clients[i], train=own[labels[own] != 3][:most])
    return replace(data, clients=clients)


FURTHER = {
    "kept": Setting(training={"optimiser_state": "kept"}, form=keeping_momentum),
    "schedule": Setting(cohorts=[range(len(SIZES))] * 3, training={"schedule": Exponential(decay=0.5)}),
    "odd": Setting(
        cohorts=[[0, 1, 3], [0, 2], [1]],
        training={"bn_single": "eval"},
        changed=without_samples,
        form=sparing_single_samples,
    ),
}
"""Settings that tests do not have."""
NOT_COMPARED = (("FedAvg-FT", "kept"), ("SCAFFOLD", "kept"), ("FedCO2", "kept"))
"""Shown as –."""


def cell(name: str, *settings: str, execution: str = "loop") -> str:
    """Return the largest difference of what the server holds, what clients keep, and all scores."""
    if (name, *settings) in NOT_COMPARED:
        return "–"
    known = {**SETTINGS, **FURTHER, "squared errors": OTHER_LOSS}
    return bound(d for each in settings for d in compare(name, known[each], execution).values())


def title(name: str) -> str:
    """Return the name of a method as its paper writes it."""
    return display_name(f"rayfl.methods.{name.removesuffix('-FT')}") + "-FT" * name.endswith("-FT")


def rows_of_methods() -> list[list[str]]:
    """Return a row for each method, with the settings of tests and those that tests do not have."""
    rows = [["method", *EXECUTIONS, *FURTHER]]
    for name in BASIC:
        form = f"[{title(name)}](../tests/methods/forms/{name.lower().replace('-', '')}.py)"
        both = [cell(name, *SETTINGS, execution=execution) for execution in EXECUTIONS]
        rows.append([form, *both, *(cell(name, each) for each in FURTHER)])
    return rows


def rows_of_options() -> list[list[str]]:
    """Return a row for each of the further settings."""
    rows = [["method", "options", "shares, loop, squared errors"]]
    for name in (name for name in CASES if " " in name):
        method, _, options = name.partition(" ")
        rows.append([title(method), f"`{options}`", cell(name, "squared errors")])
    return rows


def written() -> str:
    """Return the page with its tables made anew."""
    tables = {
        "methods": markdown(rows_of_methods()),
        "options": markdown(rows_of_options()),
    }
    return MARKER.sub(lambda m: f"<!-- numbers: {m[1]} -->\n\n{tables[m[1]]}\n", PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(written())
