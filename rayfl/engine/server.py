"""The server's half of a federation: its state, what it sends, and how it aggregates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from rayfl.data import FederatedData
from rayfl.engine.base import Plan
from rayfl.engine.guard import guard_call
from rayfl.engine.process import exits_as_errors
from rayfl.engine.set_up import set_up
from rayfl.engine.travel import (
    BEFORE,
    Download,
    Hook,
    RoundResult,
    States,
    check_state,
    first_missing,
    first_server_state,
    state_spec,
)
from rayfl.errors import Conflict
from rayfl.methods import Cohort
from rayfl.record.checkpoint import Checkpoints
from rayfl.training.state import State, canonical, is_finite
from rayfl.training.sums import Accumulated, combine
from rayfl.transforms.pipeline import MEMORY

CPU = torch.device("cpu")


class Server:
    """Holds the server state of a method; always on the CPU.

    Args:
        plan: the federation.
        data: for the shape of the net, and for the clients and their numbers of samples.
    """

    def __init__(self, plan: Plan, data: FederatedData) -> None:
        torch.set_num_threads(plan.engine.threads)
        self.method = plan.method
        self._per_client = self.method.overrides("download_for")
        _, self.context = set_up(plan, data)
        declared = self.method.uploads(self.context)
        self.uploads = self.context.reductions(declared)
        self.pipeline = plan.pipeline(self.uploads, data.seen)
        self._uploads_before = self.context.reductions(declared, before=True)
        self._samples = data.counts("train")[: data.seen]
        self.state: State = self._initial_state()
        self.memory = self.pipeline.init_server(self.context)  # of transforms
        self._first = state_spec(self.state)

    def _initial_state(self) -> State:
        """Return the state before the first round."""
        name, when = f"{type(self.method).__name__}.init_server", "before the first round"
        with guard_call(self.method, CPU, "init_server", when, initial=[self.context.initial]):
            state = first_server_state(self.method, self.context)
        return canonical(check_state(name, state, when))

    @exits_as_errors()
    def download(self, ids: Sequence[int]) -> Download:
        """Return what all clients receive, and what each of ``ids`` receives besides."""
        hook = "download_for" if self._per_client else "download"
        with guard_call(self.method, CPU, hook, "on the server"):
            return self.build_download(ids)

    @exits_as_errors()
    def build_download(self, ids: Sequence[int]) -> Download:
        """Return what ``download`` does, without a guard: an export traces this, and cannot trace a guard."""
        each = {i: self.method.download_for(self.state, i) for i in ids} if self._per_client else {}
        return Download(self.method.download(self.state), each, self.memory)

    @exits_as_errors()
    def server_metrics(self) -> dict[str, float | list[float]]:
        """Return the numbers that the method records of its state."""
        with guard_call(self.method, CPU, "server_metrics", "on the server"):
            return self.method.server_metrics(self.context, self.state)

    @exits_as_errors()
    def aggregate(
        self, hook: Hook, round: int, drop: bool, sums: int, *ends: Any
    ) -> tuple[Download | None, None]:
        """Take the step of a round as soon as all workers are done, or keep what clients upload before it.

        Args:
            hook: what has trained; after ``before_round`` the uploads go into the state as they are.
            round: from 0.
            drop: whether clients with bad updates are left out; otherwise one of them ends the run, and there
                is no step.
            sums: how many of ``ends`` come first.
            ends: the accumulated sums of workers or hosts; then the round results of the workers.

        Returns:
            The next download, if it is the same for all clients; and None, on which the driver can wait.
        """
        results: Sequence[RoundResult] = ends[sums:]
        bad = {i for result in results for i in result.bad}
        if hook == "before_round" and (drop or not bad):
            self.keep_exchange(*ends[:sums])
        elif drop or not bad:
            left_out = bad.union(*(result.idle for result in results))
            ids = sorted(i for result in results for i in result.ids if i not in left_out)
            self.step(self.build_cohort(ids, round), *ends[:sums])
        return None if self._per_client else self.download(()), None

    def keep_exchange(self, *parts: dict[str, Accumulated]) -> None:
        """Combine what clients have uploaded before a round's training, if anything, into the state."""
        if combined := combine(self._uploads_before, parts):
            self.state = {**self.state, BEFORE: canonical(combined)}

    def build_cohort(self, ids: Sequence[int], round: int) -> Cohort:
        """Return the cohort of these clients, ascending, as a method gets it."""
        own = self._samples[list(ids)].tolist()
        expected = self.pipeline.expected if self.pipeline.by_expected else None
        return Cohort(tuple(ids), tuple(own), round, int(self._samples.sum()), self.context, expected)

    def step(self, cohort: Cohort, *parts: dict[str, Accumulated]) -> None:
        """Combine the uploads and take the method's server step.

        Without clients nothing changes, unless a transform has a step in every round.

        Raises:
            UserError: the step leads to a state that is not finite; the old one is kept.
        """
        if cohort.ids or self.pipeline.by_expected:
            name, when = f"{type(self.method).__name__}.aggregate", f"round {cohort.round}"
            uploads, memory = self._combine_uploads(cohort, parts)
            with guard_call(self.method, CPU, "aggregate", when, server=[self.state], up=[uploads]):
                found = self.method.aggregate(self.state, uploads, cohort)
            if self._uploads_before and isinstance(found, Mapping):
                found = {BEFORE: self.state[BEFORE], **found}
            state = check_state(name, found, f"in {when}", self._first)
            if wrong := _first_not_finite(state, [self.state, uploads]):
                raise Conflict(
                    name,
                    f"returns a state in round {cohort.round} that is not finite (NaN or infinity): {wrong}. "
                    "The run stops, with its records and checkpoints intact",
                    "Where training has diverged, try a smaller training.lr or training.clip",
                )
            self.state, self.memory = canonical(state), canonical(memory)

    def _combine_uploads(
        self, cohort: Cohort, parts: Sequence[dict[str, Accumulated]]
    ) -> tuple[dict[str, Any], State]:
        """Return the combined uploads as the method expects them, and what transforms keep."""
        if not self.pipeline.parts:
            return combine(self.uploads, parts), {}
        down = self.method.download(self.state)
        combined = combine(self.pipeline.reductions(down), parts)
        return self.pipeline.at_server(combined, down, self.memory, cohort)

    def states(self) -> States:
        """Return the state, under the number 0."""
        return States({0: self.state})

    def save(self, folder: str) -> str:
        """Write the state; return the file's name."""
        kept = {MEMORY: self.memory} if self.memory else {}
        return Checkpoints(Path(folder)).write_server({**self.state, **kept})

    def restore(self, folder: str, name: str | None) -> None:
        """Load the state in a file; None: the state before the first round.

        Raises:
            UserError: it is of another method or another net.
        """
        if name is None:
            self.state, self.memory = self._initial_state(), self.pipeline.init_server(self.context)
            return
        state = Checkpoints(Path(folder)).read(name)
        self.memory = state.pop(MEMORY, {})
        if at := first_missing(self._first, state_spec(state)):
            raise Conflict(
                "the checkpoint",
                f"does not fit method and net ({at!r} differs): config.yaml has been changed since it was "
                "written; restore it, or start anew with another --output",
            )
        self.state = state


def _first_not_finite(state: State, known: Any) -> str | None:
    """Return the first key at which a state is not finite, except for what it has taken from ``known``."""
    seen = {id(leaf) for leaf in pytree.tree_leaves(known)}
    leaves = pytree.tree_flatten_with_path(state)[0]
    odd = (path for path, leaf in leaves if id(leaf) not in seen and not is_finite(leaf))
    return next(map(pytree.keystr, odd), None)
