"""Workers in this process that behave as if they were processes of their own, and that can be lost."""

import pickle
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch

from rayfl import Inline
from rayfl.data import FederatedData
from rayfl.engine.base import SERVER, ClusterLost, EngineSession, Plan, Workers, WorkersLost
from rayfl.engine.server import Server
from rayfl.engine.worker import Worker


class Reference:
    """Stands for what an operation returns, and knows on which host that is."""

    host: Any = None


class PretendWorkers(Workers):
    """A server and some workers that share nothing: what they give each other is pickled, and what goes wrong
    in an operation shows when its result is waited for, or used by another.

    Args:
        plan: the federation.
        data: the data.
        count: of the workers.
        lost: operations that lose their process, as (name, number of its call); those with odd numbers before
            they have taken effect.
        at_loss: called when an operation is lost.
        gone: whether what the processes run on is gone.
        hosts: among which the workers are dealt out; the server is on the first.

    Attributes:
        travelled: name of an operation -> bytes that have come to it from other hosts.
    """

    recoveries = 100

    def __init__(
        self,
        plan: Plan,
        data: FederatedData,
        count: int = 2,
        lost: Collection[tuple[str, int]] = (),
        at_loss: Callable[[], None] = lambda: None,
        gone: bool = False,
        hosts: int = 1,
    ) -> None:
        self.plan, self.data = plan, data
        self.count, self.lost, self.at_loss, self.gone, self.hosts = count, lost, at_loss, gone, hosts
        self.calls: Counter[str] = Counter()
        self.travelled: Counter[str] = Counter()
        self.waits = 0
        self.processes: dict[int, Any] = {}
        self.held: dict[Reference, Any] = {}
        self.threads = torch.get_num_threads()

    def __len__(self) -> int:
        return max(0, len(self.processes) - 1)

    def start(self, allow_fewer: bool) -> None:
        """Build the server and the workers, each with a method of its own."""
        for k in (SERVER, *range(self.count)):
            make: Any = Server if k == SERVER else Worker
            self.processes[k] = make(replace(self.plan, method=deepcopy(self.plan.method)), self.data)

    def call(self, k: int, name: str, *arguments: Any, returns: int = 1) -> Any:
        """Carry an operation out at once, and keep what it returns, or what it raises."""
        self.calls[name] += 1
        references = [Reference() for _ in range(returns)]
        for reference in references:
            reference.host = self.host_of(k)
        for sent in arguments:
            if isinstance(sent, Reference) and sent.host != self.host_of(k):
                self.travelled[name] += len(self.held[sent]) if isinstance(self.held[sent], bytes) else 0
        try:
            found = self._carry_out(k, name, *map(self._value, arguments))
            sent = [pickle.dumps(value, protocol=5) for value in (found if returns > 1 else [found])]
        except Exception as error:
            self.held |= dict.fromkeys(references, error)
        else:
            self.held |= dict(zip(references, sent, strict=True))
        return references if returns > 1 else references[0]

    def host_of(self, k: int) -> int:
        """Return the number of a worker's host."""
        return max(k, 0) % self.hosts

    def _carry_out(self, k: int, name: str, *arguments: Any) -> Any:
        number = self.calls[name]
        lost = (name, number) in self.lost
        found = None if lost and number % 2 else getattr(self.processes[k], name)(*arguments)
        if lost:
            self.at_loss()
            raise WorkersLost(f"an actor died: {'before' if number % 2 else 'after'} {name} {number}")
        return found

    def _value(self, argument: Any) -> Any:
        if not isinstance(argument, Reference):
            return argument
        held = self.held[argument]
        if isinstance(held, Exception):
            raise held
        return pickle.loads(held)

    def get(self, references: Sequence[Any], usual: float | None = None) -> list[Any]:
        """Return copies of what is referred to."""
        self.waits += 1
        return list(map(self._value, references))

    def check(self) -> None:
        """Say whether what the processes run on is gone."""
        if self.gone:
            raise ClusterLost("Ray's raylet on this host is gone, and with it all processes of the run")

    def stop(self) -> None:
        """Forget all processes, and all that they held."""
        self.processes, self.held = {}, {}

    def close(self) -> None:
        """Give the process its torch threads back."""
        torch.set_num_threads(self.threads)


class Pretend(Inline):
    """An engine of such workers; ``make`` makes them of plan and data, and no configuration records it."""

    make: ClassVar[Callable[[Plan, FederatedData], Workers]] = PretendWorkers

    @contextmanager
    def start_in_background(
        self, run: str, quiet: bool = True, in_group: bool = False
    ) -> Iterator[EngineSession]:
        """Start nothing."""
        yield PretendStart(self.make)


class PretendStart(EngineSession):
    """Starts such workers."""

    def __init__(self, make: Callable[[Plan, FederatedData], Workers]) -> None:
        self._make = make

    def make_workers(self, plan: Plan, data: FederatedData, groups: int | None = None) -> Workers:
        """Return them."""
        return self._make(plan, data)


def pretend(kind: type[Workers] = PretendWorkers, **given: Any) -> Pretend:
    """Return an engine of workers of a kind, with these options."""
    engine = Pretend()
    vars(engine)["make"] = partial(kind, **given)
    return engine
