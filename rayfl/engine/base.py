"""What all engines have in common: settings, how a cohort is divided, the plan, and the workers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

import torch

from rayfl.data import FederatedData
from rayfl.errors import Shortage
from rayfl.evaluation.finetune import NO_FINETUNING, Finetune
from rayfl.methods import Method
from rayfl.methods.base import further_nets
from rayfl.nets import Architecture, Module
from rayfl.nets.module import without_adapters
from rayfl.settings import Settings, at_least, at_most
from rayfl.system.text import counted
from rayfl.training.context import Averaging
from rayfl.training.settings import Training
from rayfl.training.sums import Reduction
from rayfl.transforms import Aggregation, Attack, Transform
from rayfl.transforms.pipeline import Pipeline

ClientGroup = tuple[int, ...]
"""Client numbers, ascending, that are always trained by one process and summed in this order."""

LOOP_GROUPS = 32
"""A small cohort in loop execution is cut into so many groups at most: enough to balance 32 processes."""
GROUP_SIZE = 32
"""A large cohort is cut into groups of so many clients at most: each group costs a sum of all parameters."""


AUTO_STACK_SIZE, AUTO_STACKS = 32, 8
"""Where ``stack`` is auto, a cohort is cut into so many stacks at most, unless they had more than so many
clients each: so many actors have one stack each, and results must not depend on how many there are.
"""


class Engine(Settings, ABC, place="engine"):
    """Base of the engines; those that derive from it have no ``__init__`` of their own."""

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
    rounded up, at most 32. Fewer than 9 clients then train one by one. Results depend on it in the last bits,
    so ``config.yaml`` has the number.
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
        device, execution, layout = self.device, self.execution, self.memory_format
        if device == "auto":
            device = "cuda" if self._uses_cuda() else "cpu"
        if execution == "auto":
            execution = "stacked" if device == "cuda" else "loop"
        if layout == "auto":
            layout = "channels_last" if (device, execution) == ("cpu", "loop") else "contiguous"
        return replace(self, device=device, execution=execution, memory_format=layout)

    def _uses_cuda(self) -> bool:
        """Return whether ``device: auto`` means CUDA."""
        return torch.cuda.is_available()

    def with_stack(self, cohort: int, clients: int) -> Self:
        """Return an engine with a number in the place of ``stack: auto``.

        Args:
            cohort: how many clients the first round trains.
            clients: the population.
        """
        return replace(self, stack=self._stack(cohort))

    def _stack(self, cohort: int) -> int:
        return (
            max(1, min(AUTO_STACK_SIZE, math.ceil(cohort / AUTO_STACKS)))
            if self.stack == "auto"
            else self.stack
        )

    def groups(self, cohort: Sequence[int]) -> list[ClientGroup]:
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

    @abstractmethod
    def start_in_background(
        self, run: str, quiet: bool = True, in_group: bool = False
    ) -> AbstractContextManager[EngineSession]:
        """Start what does not depend on the data, while they are loaded and checked.

        It has started when the context is left; leaving it by an exception undoes it.

        Args:
            run: the run's name, for people who look at the processes.
            quiet: whether to print nothing about the start.
            in_group: whether Ray's actors go into the placement group of this process, a bundle each.

        Raises:
            UserError: it cannot be started.
        """


class EngineSession(ABC):
    """An engine that has started for one run; its workers stop it when they are closed."""

    def round_callbacks(self) -> list[Any]:
        """Return callbacks that report every round to what the processes run on."""
        return []

    def share_data(self, data: FederatedData, code: Mapping[str, str]) -> FederatedData:
        """Return the data in memory that all processes share; the caller's copy can go before they start.

        Args:
            data: what ``Federation.federated_data`` returns.
            code: digests of the user's own code that the processes need.
        """
        return data

    @abstractmethod
    def make_workers(self, plan: Plan, data: FederatedData, groups: int | None = None) -> Workers:
        """Return the server and the workers, not yet started.

        Args:
            plan: the federation.
            data: as ``share_data`` has returned them.
            groups: how many groups of clients a round trains: at most as many workers have work.
        """


@dataclass(frozen=True)
class Plan:
    """What every process of a federation needs; with the data it determines every result.

    Attributes:
        method: the method.
        net: the net; or several, of which client k uses number k modulo their count.
        training: the settings of local training.
        seed: the run's seed.
        engine: the settings of execution, without ``auto``.
        rounds: the number of rounds.
        metrics: what is measured besides the figure and loss, see ``rayfl.evaluation.measures``.
        counts_by: the view by which clients count that have never trained, see ``Method.fallback``.
        finetune: how clients are fine-tuned before they are scored.
        averaging: how means are weighted that do not say it themselves; None: as the method has them.
        transforms: what clients' changes of weights go through.
        attack: what some clients do to harm the others.
        aggregation: what the server does with changes of weights in the place of their sums.
        expected: how many of so many clients a round has on average; by default all.
        frozen: the digest of what is frozen in the nets, where that is known.
    """

    method: Method
    net: Architecture | str | list[Architecture | str]
    training: Training
    seed: int
    engine: Engine
    rounds: int = 1
    metrics: Sequence[str] = ()
    counts_by: str | None = "personal"
    finetune: Finetune = NO_FINETUNING
    averaging: Averaging | None = None
    transforms: Sequence[Transform] = ()
    attack: Attack | None = None
    aggregation: Aggregation | None = None
    expected: Callable[[int], float] = float
    frozen: str | None = None

    @property
    def nets(self) -> Sequence[Architecture | str]:
        """The nets as a list, also where there is one."""
        return self.net if isinstance(self.net, list | tuple) else [self.net]

    def pipeline(self, uploads: Mapping[str, Reduction], clients: int) -> Pipeline:
        """Return what changes of weights go through.

        Args:
            uploads: how the method combines what clients upload, by upload key.
            clients: how many may train.
        """
        attackers = self.attack.attackers(self.seed, clients) if self.attack else ()
        parts = (self.transforms, self.attack, attackers, self.aggregation)
        return Pipeline(uploads, self.expected(clients), *parts)

    def _every_net(self) -> list[Architecture | str]:
        """Return the clients' nets, and those that the method has besides."""
        return [*self.nets, *(net for net in further_nets(self.method).values() if net is not None)]

    def digests(self) -> dict[str, str]:
        """Return digests of files of the nets, and whatever else decides what they compute, by name."""
        each = [net.digests() for net in self._every_net() if isinstance(net, Architecture)]
        return {name: digest for found in each for name, digest in found.items()}

    @property
    def import_paths(self) -> list[str]:
        """The import paths of nets, metrics and the loss in the plan."""
        nets = [without_adapters(net) for net in self._every_net()]
        names = [
            *self.metrics,
            self.training.loss,
            *(net.path if isinstance(net, Module) else net for net in nets),
        ]
        return [name for name in names if isinstance(name, str) and "." in name]

    @property
    def depends_on_total_rounds(self) -> bool:
        """Whether a round depends on the total number of rounds: such a run cannot be made longer."""
        return self.method.facts.uses_rounds or self.training.schedule.uses_rounds


SERVER = -1
"""The number by which the server is called."""


class WorkersLost(Shortage):
    """Processes of a federation have died, and their state is lost."""


class ClusterLost(Shortage):
    """The cluster of a federation is gone, so no process can be started again."""


class Workers(ABC):
    """The server and the workers of a federation, as a session reaches them.

    Attributes:
        recoveries: how many losses a session survives without another checkpoint in between.
        hosts: what the hosts of a cluster have that decides numbers, by their names; see ``engine.hosts``.
        hangs: whether ``get`` has said that it waits for far longer.
    """

    recoveries = 0
    hangs = False
    hosts: Mapping[str, Mapping[str, str | None]] = {}

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of workers; 0 before the start and after a stop."""

    @abstractmethod
    def start(self, allow_fewer: bool) -> None:
        """Start the server and the workers that do not run.

        Args:
            allow_fewer: whether fewer workers than requested will do if no more fit.
        """

    @abstractmethod
    def call(self, k: int, name: str, *arguments: Any, returns: int = 1) -> Any:
        """Start an operation of a worker; return a reference to its result.

        Args:
            k: the worker's number, or ``SERVER``.
            name: the operation's method of ``Worker`` or ``Server``.
            arguments: its arguments, which may be references.
            returns: the number of values that it returns; if several, there is a reference to each.
        """

    @abstractmethod
    def get(self, references: Sequence[Any], usual: float | None = None) -> list[Any]:
        """Wait for the results that references stand for, and return them.

        Args:
            references: as ``call`` has returned them.
            usual: seconds that the calls take, by what was measured; None: unknown.

        Raises:
            WorkersLost: processes have died.
        """

    def host_of(self, k: int) -> Any:  # noqa: B027 - only some have several
        """Return the host of a worker, or of the ``SERVER``; here all are on one."""

    def add_workers(self) -> None:  # noqa: B027 - only some can
        """Add workers for which there is room now; the others keep their numbers."""

    def hosts_leave(self) -> bool:
        """Return whether a host is about to go, and has not been named before: a checkpoint is due."""
        return False

    def check(self) -> None:  # noqa: B027 - only processes of their own can lose what they run on
        """Check that the cluster of the processes is alive.

        Raises:
            ClusterLost: it is not.
        """

    @abstractmethod
    def stop(self) -> None:
        """Stop the server and the workers, so that others can be started."""

    def keep_survivors(self) -> None:
        """Keep the processes that are alive after a loss; here none."""
        self.stop()

    @abstractmethod
    def close(self) -> None:
        """Stop everything, for good."""
