"""The transforms of a run, as workers and server apply them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rayfl.errors import BadCode, Conflict
from rayfl.training.client import Client
from rayfl.training.context import Cohort, Context
from rayfl.training.params import Params
from rayfl.training.state import State
from rayfl.training.sums import Mean, Reduction, Sum
from rayfl.transforms.base import Change, Transform

MEMORY = "transforms"
"""Key of a state, of a client or of the server, under which transforms keep theirs; methods do not see it."""


@dataclass(frozen=True)
class Pipeline:
    """What changes of weights go through: all client halves, the sum, all server halves.

    Attributes:
        transforms: in the order of the clients.
        uploads: how the method combines what clients upload, by upload key.
        expected: how many clients a round has on average.
    """

    transforms: Sequence[Transform]
    uploads: Mapping[str, Reduction]
    expected: float

    @property
    def by_expected(self) -> bool:
        """Whether sums are divided by the expected number of clients; there is a step in every round then."""
        return any(each.divisor == "expected" for each in self.transforms)

    def check(
        self, context: Context, declared: Mapping[str, Reduction], down: State, per_client: bool
    ) -> None:
        """Refuse a method that does not send the same weights to all, or whose clients send none back.

        Args:
            context: the facts of the run.
            declared: all uploads of the method, also those before a round.
            down: what clients receive in the first round.
            per_client: whether the method sends something else to each of them.
        """
        if not self.transforms:
            return
        names = ", ".join(type(each).__name__ for each in self.transforms)
        advice = "choose another method, such as FedAvg or FedPer"
        if per_client:
            problem = f"are {names}, and this method sends a model of its own to each client, of which the "
            raise Conflict("transforms", f"{problem}server cannot add up changes", advice)
        if not self._covered(down):
            problem = f"are {names}, which work on changes of weights, and clients of this method send none"
            raise Conflict("transforms", problem, advice)
        if self.by_expected and (key := self._uploaded_weight(down)):
            problem = f"are {names}, for which all clients count alike, and this method's mean of {key!r} is "
            raise Conflict("transforms", f"{problem}weighted by what clients send", advice)
        for place, each in enumerate(self.transforms, 1):
            if each.last and place < len(self.transforms):
                raise Conflict("transforms", f"has {type(each).__name__}, which others follow", "put it last")
            each.check(context, declared, down, self.expected)

    def _uploaded_weight(self, down: State) -> str | None:
        means = ((key, how) for key, how in self._covered(down).items() if isinstance(how, Mean))
        return next((key for key, how in means if how.key is not None), None)

    def _covered(self, down: State) -> dict[str, Reduction]:
        """Return the uploads that are weights, or changes of them, which the download has."""
        if not self.transforms:
            return {}
        return {key: how for key, how in self.uploads.items() if isinstance(down.get(how.base(key)), Params)}

    def _named(self) -> list[tuple[str, Transform]]:
        """Return the transforms by the names of their memories: the same class may be there twice."""
        return [(f"{k} {type(each).__name__}", each) for k, each in enumerate(self.transforms)]

    def reductions(self, down: State) -> dict[str, Reduction]:
        """Return how what clients send is combined, with the sums of transforms."""
        sums = {name: Sum() for name, each in self._named() if each.sums}
        if not self.by_expected:
            return {**self.uploads, **sums}
        return {**self.uploads, **{key: Sum() for key in self._covered(down)}, **sums}

    def init_server(self, context: Context) -> State:
        """Return what the server halves keep before the first round."""
        return {name: kept for name, each in self._named() if (kept := each.init_server(context))}

    def at_client(
        self, up: Mapping[str, Any], down: State, memory: State, client: Client, received: State
    ) -> tuple[dict[str, Any], State, dict[str, int]]:
        """Return what is added up of a client's upload, what it keeps, and what it sends in bytes.

        Args:
            up: what the method uploads.
            down: what the client has received.
            memory: what transforms have kept with the client.
            client: the client.
            received: what server halves keep.
        """
        covered = {key: how for key, how in self._covered(down).items() if isinstance(up.get(key), Params)}
        change: Change = {
            k: up[k] if how.adds_to else up[k] - down[how.base(k)] for k, how in covered.items()
        }
        sizes = {key: each.nbytes for key, each in change.items()}
        kept: State = {}
        sums: dict[str, dict[str, float]] = {}
        for name, each in self._named():
            found = each.at_client(change, memory.get(name) or {}, client, received.get(name) or {})
            change, own, further = found
            if further.keys() != set(each.sums):
                raise BadCode(
                    f"{type(each).__name__}.at_client",
                    f"returns the sums {sorted(further)}, and `sums` declares {sorted(each.sums)}",
                )
            kept |= {name: own} if own else {}
            sums |= {name: dict(further)} if further else {}
            sizes = each.upload_bytes(change, sizes) | ({name: 4 * len(further)} if further else {})
        return {**up, **change, **sums}, kept, sizes

    def at_server(
        self, up: dict[str, Any], down: State, memory: State, cohort: Cohort
    ) -> tuple[dict[str, Any], State]:
        """Return the uploads as the method combines them, and what server halves keep.

        Args:
            up: what has been combined of what clients have sent, as ``reductions`` says.
            down: what clients have received.
            memory: what server halves have kept.
            cohort: who has sent it.
        """
        covered = self._covered(down)
        if self.by_expected:
            up = {key: down[how.base(key)].zeros() for key, how in covered.items()} | up
        change: Change = {key: up[key] for key in covered if key in up}
        kept = dict(memory)
        for name, each in reversed(self._named()):
            sums = up.pop(name, dict.fromkeys(each.sums, 0.0))
            generator = cohort.context.generator(f"transform {name}", cohort.round)
            change, own = each.at_server(change, memory.get(name) or {}, sums, cohort, generator)
            kept |= {name: own} if own else {}
        if self.by_expected:
            means = {key for key, how in covered.items() if isinstance(how, Mean)}
            change = {k: each / self.expected if k in means else each for k, each in change.items()}
        whole = {
            key: each if covered[key].adds_to else down[covered[key].base(key)] + each
            for key, each in change.items()
        }
        return up | whole, kept
