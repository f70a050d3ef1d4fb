"""What all engines have in common: the settings of execution, and how a cohort is divided."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

import torch

from rayfl.data import FederatedData
from rayfl.engine.plan import Group, Plan
from rayfl.engine.session import Session
from rayfl.settings import Settings, at_least, at_most
from rayfl.shown import counted

LOOP_GROUPS = 32
"""A small cohort in loop execution is cut into so many groups at most: enough to balance 32 processes."""
GROUP_SIZE = 32
"""A large cohort is cut into groups of so many clients at most: each group costs a sum of all parameters."""


STACK, STACKS = 32, 8
"""Where ``stack`` is auto, a cohort is cut into stacks of so many clients at most, and, where it has as many
clients, into so many stacks at least: actors need work, and results must not depend on how many there are.
"""


class Engine(Settings, ABC, place="engine"):
    """Base of the engines."""

    _frozen = False  # a run settles the stack in its own
    quiet = True  # whether it says nothing of what it starts; a run sets it

    execution: Literal["auto", "loop", "stacked"] = "auto"
    """``loop`` trains client after client, ``stacked`` many in one call; ``auto`` is stacked on a GPU, and
    loop on a CPU, where a stack is slower. Where a stack would train clients otherwise than the loop, as with
    recurrent layers and hooks, the run goes on in the loop, and says so.
    """
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """``cpu``, ``cuda``, or ``auto``: CUDA where torch sees it. In a process of Ray's, such as a trial of a
    sweep, only where a share of a GPU is reserved for it.
    """
    threads: Annotated[int, at_least(1), at_most(1024)] = 1
    """Torch threads of every process. Results depend on it in the last bits."""
    memory_format: Literal["auto", "contiguous", "channels_last"] = "auto"
    """Layout of images and convolution weights in training: ``channels_last``, ``contiguous``, or ``auto``:
    channels_last in a loop on the CPU, where it is faster.
    """
    stack: Annotated[int, at_least(1)] | Literal["auto"] = "auto"
    """Clients per stacked call. ``auto`` goes by the size of the first round's cohort alone: an eighth of it,
    at most 32. Fewer than 16 clients then train one by one. Results depend on it in the last bits, so
    ``config.yaml`` has the number.
    """
    deterministic: bool = False
    """Whether to allow deterministic GPU kernels only."""
    state_memory: Annotated[float, at_least(0)] | None = None
    """GB of clients' personal states that stay in memory on each machine; half of what is free if not given.
    The others are in a file on its disk, where TMPDIR says, or else in /var/tmp; results are the same.
    """

    def resolve(self) -> Self:
        """Return an engine in which every ``auto`` is what it means here, so that a configuration says it.

        Raises:
            UserError: ``device`` is ``cuda``, and the engine cannot provide it.
        """
        here = copy(self)
        if here.device == "auto":
            here.device = "cuda" if self._uses_cuda() else "cpu"
        if here.execution == "auto":
            here.execution = "stacked" if here.device == "cuda" else "loop"
        if here.memory_format == "auto":
            plain_loop = here.device == "cpu" and here.execution == "loop"
            here.memory_format = "channels_last" if plain_loop else "contiguous"
        return here

    def _uses_cuda(self) -> bool:
        """Say what ``device: auto`` means."""
        return torch.cuda.is_available()

    def settle(self, cohort: int, clients: int) -> None:
        """Replace ``stack: auto`` by its number, before anything is started.

        Args:
            cohort: how many clients the first round trains.
            clients: the population.
        """
        self.stack = self._stack(cohort)

    def _stack(self, cohort: int) -> int:
        return max(1, min(STACK, cohort // STACKS)) if self.stack == "auto" else self.stack

    def groups(self, cohort: Sequence[int]) -> list[Group]:
        """Cut a cohort into the groups that are trained and summed together; they never depend on placement.

        Args:
            cohort: client numbers, ascending.
        """
        if self.execution == "stacked":
            stack = self._stack(len(cohort))
            return [tuple(cohort[k : k + stack]) for k in range(0, len(cohort), stack)]
        count = min(len(cohort), max(LOOP_GROUPS, math.ceil(len(cohort) / GROUP_SIZE)))
        cuts = [k * len(cohort) // max(1, count) for k in range(count + 1)]
        return [tuple(cohort[start:end]) for start, end in pairwise(cuts)]

    def describe(self) -> str:
        """Return the engine in a few words, for people."""
        return f"{type(self).__name__} ({self.execution} on {self.device}, {counted(self.threads, 'thread')})"

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Do in the background what does not depend on the data, while they are loaded and checked.

        Leaving by an exception undoes it.
        """
        yield

    def watchers(self, run: str) -> list[Any]:
        """Return callbacks that tell what the processes run on of every round of a run.

        Args:
            run: its name.
        """
        return []

    def share(self, data: FederatedData) -> FederatedData:
        """Return the data in memory that all processes share; the caller's copy can go before they start."""
        return data

    @abstractmethod
    def open(self, plan: Plan, data: FederatedData) -> Session:
        """Start what runs the clients.

        Raises:
            UserError: the resources asked for are not there.
        """
