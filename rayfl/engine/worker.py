"""A worker: it trains and scores clients, and keeps their personal states."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from socket import gethostname
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from rayfl.data import FederatedData
from rayfl.data.dataset import SPLITS
from rayfl.engine.base import ClientGroup, Plan
from rayfl.engine.client_states import ClientStates
from rayfl.engine.guard import Guard, Snapshot, guard_call
from rayfl.engine.process import (
    MMAP_THRESHOLD,
    exits_as_errors,
    keep_freed_memory,
    prepare_gpu,
    without_collection,
)
from rayfl.engine.set_up import set_up
from rayfl.engine.travel import (
    EMPTY_DOWNLOAD,
    Download,
    Hook,
    RoundResult,
    States,
    StateSpec,
    check_state,
    check_update,
    check_views,
    state_spec,
)
from rayfl.errors import BadCode, Shortage, UserError, text_of
from rayfl.evaluation.finetune import finetune_model
from rayfl.evaluation.measures import measures
from rayfl.evaluation.score import BLOCK, BLOCK_BYTES, ClientScores, Predict, check_scoring, score_clients
from rayfl.randomness import seed_of
from rayfl.record.checkpoint import Checkpoints
from rayfl.system.error_report import own_place
from rayfl.system.own_code import code_digests, is_own, own_modules
from rayfl.system.text import short_repr
from rayfl.training.client import Client, Fitted
from rayfl.training.examples import Examples
from rayfl.training.loop import run_loop
from rayfl.training.params import Params
from rayfl.training.stacked import run_stacked
from rayfl.training.state import State, all_finite, as_tensor, canonical, pack, to_device, unpack
from rayfl.training.sums import Accumulated, Accumulator, Mean, Reduction, combine, merge_parts, payload_bytes
from rayfl.transforms.pipeline import MEMORY

FOR_NEW_CLIENTS: dict[str, Reduction] = {"state": Mean("uniform")}
"""How the values that clients give to new clients are combined."""
KEPT = "optimiser state"
"""Key of a client's state under which optimisers keep theirs; see ``training.optimiser_state``."""
_OPTIMISER_ADVICE = (
    "Other processes do not see the change, and a resumed run has lost it. What an optimiser remembers of a "
    "client is what its `memory` returns"
)
LOOP_CHUNK = 32
"""Most clients that a loop trains at a time."""
LOOP_CHUNK_BYTES = 8 * 2**20
"""Most bytes of their weights; one client may have more."""


@dataclass
class _RoundContext:
    """The arguments of the current round, and where its results go."""

    hook: Hook
    round: int
    download: Download
    score_splits: Sequence[str]
    drop: bool
    accumulator: Accumulator
    result: RoundResult
    guard: Guard
    again: Worker | None = None  # repeats updates that have failed


@dataclass
class _ClientUpdate:
    """A client's inputs and results in one round."""

    client: Client
    held: State
    down: State
    state: State | None = None  # not yet looked up
    fits: list[Fitted] = field(default_factory=list)


class Worker:
    """Trains and scores clients: it has a net of each architecture, and keeps their personal states.

    Args:
        plan: the federation.
        data: the data set and each client's part of it.
    """

    def __init__(self, plan: Plan, data: FederatedData) -> None:
        engine = plan.engine
        torch.set_num_threads(engine.threads)
        if engine.device == "cuda":
            prepare_gpu(engine.deterministic, plan.training.precision == "tf32")
        self.plan = plan
        self.method = plan.method
        self.device = torch.device(engine.device)
        self._nets, self.context = set_up(plan, data)
        self._further = self.context.nets
        declared = self.method.uploads(self.context)
        self.uploads: dict[Hook, dict[str, Reduction]] = {
            "local_update": self.context.reductions(declared),
            "before_round": self.context.reductions(declared, before=True),
        }
        self.pipeline = plan.pipeline(self.uploads["local_update"], data.seen)
        initial = {net: net.initial(plan.seed).to(self.device) for net in set(self._nets)}
        self._initials = [initial[net] for net in self._nets]
        for net in {*initial, *self._further.values()}:
            net.to(self.device)
        self.net, self.initial = self._nets[0], self._initials[0]
        channels_last = engine.memory_format == "channels_last"
        self.examples = Examples(data.dataset, self.device, plan.training.dtype, channels_last)
        self.data = data
        self.states = ClientStates(None if engine.state_memory is None else 1e9 * engine.state_memory)
        self._first: dict[int, StateSpec] = {}  # of a client's state, by the number of its net
        held = data.held  # nothing per client is made before it is needed: there may be a million
        self._held = {
            split: (as_tensor(held.indices[split]), held.ends[split][:-1], held.ends[split][1:])
            for split in SPLITS
        }
        starts = np.broadcast_to(0, len(data))  # every client has all of it
        self._held["common"] = as_tensor(data.common), starts, data.counts("common")
        self._measures = measures(plan.metrics, data.dataset)
        self._run = run_stacked if engine.execution == "stacked" else run_loop
        self._imported = own_modules()

    def late_code(self) -> dict[str, str]:
        """Return digests of the user's own modules that this process has imported since it began."""
        late = own_modules() - self._imported
        return code_digests(late) if late else {}

    def client(self, id: int, round: int, seed: int | None = None, unlabelled: bool = False) -> Client:
        """Return the client as methods see it in a round.

        Args:
            id: the client.
            round: from 0.
            seed: what it draws from; the run's if not given.
            unlabelled: whether its training data are its test images, without labels.
        """
        kind, counts = id % len(self._nets), self._class_counts(id)
        return Client(
            id,
            self._nets[kind],
            self._initials[kind],
            self.examples.unlabelled() if unlabelled else self.examples,
            self._samples(id, "test" if unlabelled else "train"),
            torch.zeros_like(counts) if unlabelled else counts,
            self.plan.training,
            self.plan.seed if seed is None else seed,
            round,
            None if unlabelled else self._samples(id, "val"),
            self._further,
            rounds=self.plan.rounds,
            context=self.context,
        )

    def _samples(self, id: int, split: str) -> Tensor:
        """Return the indices of a client's samples, int64 [n]."""
        indices, starts, ends = self._held[split]
        return indices[int(starts[id]) : int(ends[id])]

    def _count(self, id: int, split: str = "train") -> int:
        _, starts, ends = self._held[split]
        return int(ends[id] - starts[id])

    def _class_counts(self, id: int) -> Tensor:
        """Return how many training samples of each class a client has, int64 [classes]."""
        dataset = self.data.dataset
        labels = dataset.labels[self.data.held.split(id, "train")]
        return torch.from_numpy(np.bincount(labels, minlength=dataset.classes)).to(self.device)

    def state(self, id: int, client: Client, given: State | None = None) -> State:
        """Return a client's personal state; before its first participation, the initial one.

        Args:
            id: the client.
            client: the same, as methods see it.
            given: what other clients give to it until then, see ``for_new_clients``.
        """
        held = self.states.get(id) or {}
        return self._state_or_initial(held, client, None if held else given)

    def _state_or_initial(self, held: State, client: Client, given: State | None = None) -> State:
        """Return the stored state, or the initial one, with what is given, if the client has none."""
        state = state_of_method(held) or {**self.method.init_client(client), **(given or {})}
        return to_device(state, self.device) if state else state

    def updates(self, download: Download, ids: Iterable[int]) -> list[Any]:
        """Start the updates of clients in the first round; the caller runs them."""
        download, clients = self._download_on_device(download), [self.client(i, 0) for i in ids]
        return [
            self._start("local_update", c, self.state(c.id, c), self._client_download(download, c.id))
            for c in clients
        ]

    @exits_as_errors()
    def train(
        self,
        round: int,
        download: Download,
        groups: Sequence[ClientGroup],
        score_splits: Sequence[str] = (),
        drop: bool = False,
        hook: Hook = "local_update",
        *arrivals: States,
    ) -> tuple[dict[str, Accumulated], RoundResult]:
        """Train the clients of some groups, keep their new state, and accumulate their uploads.

        Args:
            round: from 0.
            download: what they receive.
            groups: the groups to train.
            score_splits: splits of the data on which to score each client right after its training.
            drop: whether an exception in a client's training is reported as a bad update, and not raised.
            hook: what trains; after ``before_round`` states stay as they are.
            arrivals: states of clients that move here first.

        Returns:
            The accumulated uploads, for the server; and the round's results, for the driver.
        """
        for states in arrivals:
            self.states.update(states)
        if self.plan.engine.device == "cpu" and any(
            2 * params.nbytes > MMAP_THRESHOLD for params in self._initials
        ):
            keep_freed_memory()  # an upload is added up as one float64 vector
        download = self._download_on_device(download)
        group_of = {i: group for group in groups for i in group}
        guard = Guard(self.method, self.device, hook, f"round {round}")
        reductions, left_out = self.uploads[hook], self.pipeline.left_out(download.everyone)
        if hook == "local_update" and self.pipeline.parts:
            reductions = self.pipeline.reductions(download.everyone)
        accumulator, result = Accumulator(reductions, group_of, left_out), RoundResult()
        result.seconds = dict.fromkeys(groups, 0.0)
        context = _RoundContext(hook, round, download, score_splits, drop, accumulator, result, guard)
        guards, optimiser = [guard], self.plan.training.optimiser
        if is_own(type(optimiser)):
            guards.append(Guard(optimiser, self.device, "step", f"round {round}", _OPTIMISER_ADVICE))
        order = self._training_chunks(groups)
        self.states.expect_reads(i for together in order for i in together)
        for together in order:
            began = time.perf_counter()
            self._train_chunk(context, together)
            pace = (time.perf_counter() - began) / sum(map(self._count, together))
            for i in together:
                result.seconds[group_of[i]] += pace * self._count(i)
        for each in guards:
            each.check()
        result.keeps = {i for i in result.ids if i in self.states}
        return accumulator.parts(), result

    def add_up(self, *parts: dict[str, Accumulated]) -> dict[str, Accumulated]:
        """Return one sum of what the workers of this host have accumulated."""
        return merge_parts(parts)

    def _training_chunks(self, groups: Sequence[ClientGroup]) -> list[list[int]]:
        """Return the clients with samples, as they are trained together.

        A loop takes several at a time because that is faster, with the same results: starting update after
        update, and adding upload after upload, finds code and data in the processor's caches.
        """
        return self._chunks([[i for i in group if self._count(i)] for group in groups])

    def _chunks(self, groups: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return clients as they are trained together: a stack, or some in a loop."""
        if self.plan.engine.execution == "stacked":
            return [[*group] for group in groups if group]
        largest = max(initial.nbytes for initial in self._initials)
        size = max(1, min(LOOP_CHUNK, LOOP_CHUNK_BYTES // largest))
        ids = [i for group in groups for i in group]
        return [ids[k : k + size] for k in range(0, len(ids), size)]

    def _train_chunk(self, context: _RoundContext, ids: list[int]) -> bool:
        """Train some clients together and accept their updates; return whether none has raised."""
        each = [self._client_update(context, i) for i in ids]
        try:
            with exits_as_errors():
                handed, returned = self._run_updates(context.hook, context.download.everyone, each)
        except UserError:
            raise
        except Exception as error:
            self._record_failure(context, ids, error)
            return False
        context.guard.check_unchanged(handed, f"client {', '.join(map(str, ids))}")
        for one, both in zip(each, returned, strict=True):
            self._accept(context, one, both)
        return True

    def _client_update(self, context: _RoundContext, id: int) -> _ClientUpdate:
        """Return a client that is about to train; its state may come from the disk."""
        trains, held = context.hook == "local_update", self.states.get(id) or {}
        seed = None if trains else seed_of(self.plan.seed, context.hook, id, context.round)
        client = self.client(id, context.round, seed)
        if trains and self.plan.training.optimiser_state == "kept":
            client._kept = dict(held.get(KEPT, {}))
        return _ClientUpdate(client, held, self._client_download(context.download, id))

    def _run_updates(
        self, hook: Hook, everyone: State | None, each: list[_ClientUpdate]
    ) -> tuple[Snapshot, list[Any]]:
        """Run a hook for clients; return a snapshot of its arguments, and what each has returned."""
        for one in each:
            if one.state is None:
                usual = one.client if hook == "local_update" else self.client(one.client.id, one.client.round)
                one.state = self._state_or_initial(one.held, usual)
        own = [one.down for one in each if one.down is not everyone]
        of_all = {"client.initial": self._initials, "context.prepared": [self.context.prepared]}
        counts = {"client.class_counts": [one.client._class_counts for one in each]}
        states = [one.state for one in each]
        handed = Snapshot(down=[everyone, *own], state=states, **of_all, **counts)
        updates = [self._start(hook, one.client, one.state or {}, one.down) for one in each]
        returned = self._run(updates, lambda k, fitted: each[k].fits.append(fitted))
        for further in self._further.values():
            further.release()
        return handed, returned

    def _record_failure(self, context: _RoundContext, ids: list[int], error: Exception) -> None:
        """Find out whether method or machine is at fault; record an error that does not end the run."""
        who = f"client {', '.join(map(str, ids))}"
        raised = f"has raised {type(error).__name__}: {text_of(error)}".splitlines()[0]
        if len(ids) > 1 and (context.drop or self.plan.engine.execution != "stacked"):
            one_by_one = [self._train_chunk(context, [i]) for i in ids]
            other = "and nothing like it when they were trained one by one" if all(one_by_one) else ""
        elif context.drop:
            other = self._other_when_repeated(context, ids[0], error)
            context.result.add(ids[0], None, 0, {}, {})
            context.result.bad[ids[0]] = raised
        else:
            error.add_note(f"raised while {who} trained in round {context.round}")
            raise error
        if other:
            raise Shortage(
                who,
                f"{raised} in round {context.round}, {other}. So it may be the fault of the machine "
                f"{gethostname()}, or of code that goes by more than it is given: see to it, and go on with "
                "--resume",
            ) from error

    def _other_when_repeated(self, context: _RoundContext, id: int, error: Exception) -> str:
        """Repeat a client's update in a loop on the CPU; return what differs, empty for the same error.

        A new worker does it, with copies of what updates could change. Nothing of it stays but that worker.
        """
        if context.again is None:
            engine = replace(self.plan.engine, device="cpu", execution="loop")
            context.again = Worker(replace(self.plan, engine=engine), self.data)
        worker = context.again
        worker.states[id] = unpack(pack(dict(self.states.get(id) or {})))
        received = unpack(pack(self._client_download(context.download, id)))
        alone = replace(context, download=Download(received, {}))
        try:
            with exits_as_errors(), torch.random.fork_rng(devices=[]):
                worker._run_updates(alone.hook, received, [worker._client_update(alone, id)])
        except UserError:
            raise
        except Exception as second:
            if type(second) is not type(error):
                return f"and {type(second).__name__} when it was repeated"
            places = [own_place(each) for each in (error, second)]
            return "" if places[0] == places[1] else f"and when repeated, the same at {places[1]}"
        return "and nothing like it when it was repeated"

    def _accept(self, context: _RoundContext, one: _ClientUpdate, both: Any) -> None:
        """Accumulate a client's upload, keep its next state, and score it; or record what is wrong."""
        client, i, result = one.client, one.client.id, context.result
        name, when = f"{type(self.method).__name__}.{context.hook}", f"of client {i} in round {context.round}"
        if context.hook == "before_round":
            if not isinstance(both, Mapping):
                raise BadCode(name, f"has returned {short_repr(both)}, {when}", "it must return the upload")
            both = both, one.state or {}  # which stays
        up, state = check_update(name, both, when, self._expected_spec(one))
        _check_awaited(name, one)
        counted = self.method.communication_bytes(client, one.down, up)
        sent, memory = up, dict[str, Any]()
        if context.hook == "local_update" and self.pipeline.parts:
            before = to_device(one.held.get(MEMORY) or {}, self.device)
            received = context.download.transforms
            sent, memory, sizes = self.pipeline.at_client(up, counted[1], one.down, before, client, received)
            counted = counted[0], counted[1] | sizes
        try:
            problem, prepared = context.accumulator.prepare(sent, client.samples)
        except TypeError as error:
            raise BadCode(name, f": in round {context.round} client {i} {error}") from error
        problem = problem or _training_problem(one, state)
        steps = sum(fit.steps for fit in one.fits)
        result.add(i, one.fits[-1].loss if one.fits else 0.0, steps, *counted)
        if problem is not None:
            result.bad[i] = problem
            return
        if context.hook == "before_round":
            context.accumulator.add(i, prepared, client.samples)
            return
        if one.fits and not steps:
            result.idle.add(i)
            memory = one.held.get(MEMORY) or {}
        else:
            context.accumulator.add(i, prepared, client.samples)
        kept = {key: own for key, own in ((KEPT, client._kept), (MEMORY, memory)) if own}
        if stays := ({**state, **kept} if kept else state):
            self.states[i] = canonical(stays)
            result.largest_state = max(result.largest_state, payload_bytes(stays))
        elif i in self.states:
            del self.states[i]
        if context.score_splits:
            predict = self._predict(client, state, self.method.trained(client, one.down, up))
            result.scores |= self._score({i: predict}, context.round, context.score_splits)

    def _expected_spec(self, one: _ClientUpdate) -> StateSpec:
        """Return what a client's next state must have: all keys, and the form of its first state."""
        kind = one.client.id % len(self._nets)
        if not one.held:
            self._first[kind] = state_spec(one.state) if one.state else {}
            return self._first[kind]
        return {at: None for at in self._first.get(kind, {}) if at.count("/") == 1}

    def _start(self, hook: str, client: Client, state: State, down: State) -> Any:
        """Start what awaits a client's fits, such as its update."""
        started = getattr(self.method, hook)(client, state, down)
        if not inspect.isawaitable(started):
            raise BadCode(
                f"{type(self.method).__name__}.{hook}",
                f"returns {short_repr(started)} at once: it must be an `async def`, which awaits client.fit",
            )
        return started

    def _download_on_device(self, download: Download) -> Download:
        """Return a download with the parts for everyone on the device; the rest follows client by client."""
        everyone = canonical(download.everyone, self.device)
        return download._replace(everyone=everyone, transforms=canonical(download.transforms, self.device))

    def _client_download(self, download: Download, id: int) -> State:
        """Return all that a client receives, on the device."""
        each = {id: canonical(download.each[id], self.device)} if id in download.each else {}
        return download._replace(each=each).for_client(id)

    @exits_as_errors()
    @without_collection()
    def evaluate(
        self,
        round: int,
        download: Download,
        groups: Sequence[Sequence[int]],
        splits: Sequence[str],
        given: Download = EMPTY_DOWNLOAD,
        to_personalise: Collection[int] = (),
        *arrivals: States,
    ) -> dict[int, ClientScores]:
        """Score clients with what the server would send them now and their own state.

        Args:
            round: the round that has just ended.
            download: what they would receive.
            groups: whom to score; a stack that is personalised holds clients of one group.
            splits: splits of the data.
            given: what others give to those that have no state yet, see ``for_new_clients``.
            to_personalise: those that are personalised first, if they have training data.
            arrivals: states of clients that move here first.
        """
        for states in arrivals:
            self.states.update(states)
        download = self._download_on_device(download)
        handed: dict[str, Sequence[Any]] = {"down": [download.everyone], "client.initial": self._initials}
        with guard_call(self.method, self.device, "scores", f"after round {round}", **handed):
            scores: dict[int, ClientScores] = {}
            ids = [i for group in groups for i in group]
            if self._scores_alike(download, splits, given.everyone, to_personalise):
                predict = self._predict(self.client(ids[0], round), {}, download.everyone)
                return self._score(dict.fromkeys(ids, predict), round, splits, download.everyone)
            self.states.expect_reads(ids)
            predicts: dict[int, Predict] = {}
            samples = size = 0
            for client, state, down in self._clients_to_score(
                round, download, groups, given.everyone, to_personalise
            ):
                i = client.id
                predicts[i] = self._predict(client, state, down)
                size += payload_bytes(download.each[i]) if i in download.each else 0
                counts = [n for split in splits if (n := self._count(i, split))]
                # The scores of many clients on a large common test set would fill the memory.
                samples += (max if "common" in splits else min)(counts, default=0)
                size += payload_bytes(state) if state else 0
                if samples >= BLOCK or size >= BLOCK_BYTES:
                    scores |= self._score(predicts, round, splits, download.everyone)
                    predicts, samples, size = {}, 0, 0
            return scores | (self._score(predicts, round, splits, download.everyone) if predicts else {})

    def _scores_alike(
        self, download: Download, splits: Sequence[str], given: State, to_personalise: Collection[int]
    ) -> bool:
        """Return whether all clients have the scores of one model: nobody has anything of its own."""
        own = download.each or given or to_personalise or "common" in splits or len({*self._nets}) > 1
        kept = map(self.method.overrides, ("scores", "init_client", "state_for_new_clients"))
        return not (own or len(self.states) or any(kept))

    def _clients_to_score(
        self,
        round: int,
        download: Download,
        groups: Sequence[Sequence[int]],
        given: State,
        to_personalise: Collection[int],
    ) -> Iterator[tuple[Client, State, State]]:
        """Yield clients, each with the state and the download with which it is scored."""
        for ids in self._chunks(groups) if to_personalise else ([i] for group in groups for i in group):
            clients = [self.client(i, round) for i in ids]
            states = {client.id: self.state(client.id, client, given) for client in clients}
            downs = {i: self._client_download(download, i) for i in ids}
            if chosen := {i: states[i] for i in ids if i in to_personalise}:
                states |= self.personalised_states(round, chosen, downs)
            yield from ((client, states[client.id], downs[client.id]) for client in clients)

    def personalised_states(
        self, round: int, states: Mapping[int, State], downs: Mapping[int, State]
    ) -> dict[int, State]:
        """Return the states with which clients are scored that have training data; see ``personalise``.

        Args:
            round: the round that has just ended.
            states: their personal states.
            downs: what the server would send each.
        """
        name, when = f"{type(self.method).__name__}.personalise", f"after round {round}"
        guard, each = Guard(self.method, self.device, "personalise", when), list[_ClientUpdate]()
        for i in filter(self._count, states):
            client = self.client(i, round, seed_of(self.plan.seed, "personalise", i, round))
            client._val = client._val[:0]  # which chooses among what is scored
            each.append(_ClientUpdate(client, {}, downs[i], states[i]))
        with torch.enable_grad():
            handed, found = self._run_updates("personalise", None, each) if each else (Snapshot(), [])
        guard.check()
        guard.check_unchanged(handed)
        for one in each:
            _check_awaited(name, one)
        return {
            one.client.id: check_state(name, state, f"of client {one.client.id} {when}")
            for one, state in zip(each, found, strict=True)
        }

    def _predict(self, client: Client, state: State, down: State) -> Predict:
        """Return what gives the scores of a client's models."""

        async def scores(x: Tensor) -> Mapping[str, Tensor]:
            views = await check_scoring(self.method.scores(client, state, down, x))
            check_views(self.method, views)
            return views

        return scores

    def _score(
        self,
        predicts: Mapping[int, Predict],
        round: int,
        splits: Sequence[str],
        everyone: State | None = None,
    ) -> dict[int, ClientScores]:
        """Score clients on some splits.

        Args:
            predicts: client -> what gives its scores.
            round: decides how validation images are augmented.
            splits: splits of the data.
            everyone: what the server sends to all of them, if it does.
        """
        sent = pytree.tree_leaves(everyone, is_leaf=lambda leaf: isinstance(leaf, Params))
        shared = {*map(id, sent), *map(id, self._initials)}
        found: dict[int, ClientScores] = {i: {} for i in predicts}
        for split in splits:
            samples = {i: self._samples(i, split) for i in predicts if self._count(i, split)}
            augmented = split == "val" and self.data.dataset.val_augment
            keys = {
                i: seed_of(self.plan.seed, "augmented validation", i, round) for i in samples if augmented
            }
            without = self.method.facts.without_loss
            scores = score_clients(predicts, samples, self.examples, shared, without, keys, self._measures)
            for i, views in scores.items():
                found[i][split] = views
        return found

    # ---- fine-tuning

    @exits_as_errors()
    def finetune(
        self,
        round: int,
        download: Download,
        groups: Sequence[ClientGroup],
        splits: Sequence[str],
        given: Download,
        untrained: Sequence[int],
        *arrivals: States,
    ) -> dict[int, ClientScores]:
        """Fine-tune the clients of some groups, and score the result, which is thrown away.

        Args:
            round: the round that has just ended.
            download: what they would receive.
            groups: the groups to fine-tune; a stack holds clients of one.
            splits: splits of the data.
            given: what others give to those that have no state yet, see ``for_new_clients``.
            untrained: those that have never trained: they start from the model by which they count.
            arrivals: states of clients that move here first.
        """
        for states in arrivals:
            self.states.update(states)
        download, scores = self._download_on_device(download), dict[int, ClientScores]()
        view = of_new = self.plan.finetune.view(self.method)
        if view == "personal" and self.plan.counts_by is not None:
            of_new = self.plan.counts_by
        self.states.expect_reads(i for group in groups for i in group)
        for ids in self._training_chunks(groups):
            updates = []
            for i in ids:
                drawing = self.client(i, round, seed_of(self.plan.seed, "finetune", i, round))
                state = self.state(i, self.client(i, round), given.everyone)
                down = self._client_download(download, i)
                of = of_new if i in untrained else view
                updates.append(finetune_model(self.plan.finetune, self.method, drawing, state, down, of))
            tuned = self._run(updates, lambda k, fitted: None)
            scores |= self._score(dict(zip(ids, tuned, strict=True)), round, splits)
            for further in self._further.values():
                further.release()
        return scores

    # ---- clients that never train

    @exits_as_errors()
    def state_for_new_clients(self, ids: Iterable[int]) -> dict[str, Accumulated]:
        """Accumulate what the clients with a state here give to new clients."""
        accumulator = Accumulator(FOR_NEW_CLIENTS)  # client by client: the grouping must not matter
        for i in sorted(set(ids) & self.states.keys()):
            state = state_of_method(self.states[i])
            if given := self.method.state_for_new_clients(self.context, state) if state else {}:
                accumulator.add(i, accumulator.prepare({"state": given}, 1)[1], 1)
        return accumulator.parts()

    def for_new_clients(self, *given: dict[str, Accumulated]) -> Download:
        """Return what clients that have never trained get, from what all workers have accumulated."""
        return Download(combine(FOR_NEW_CLIENTS, given).get("state", {}), {})

    @exits_as_errors()
    def unseen(
        self,
        round: int,
        download: Download,
        ids: Sequence[int],
        *given: dict[str, Accumulated],
    ) -> dict[str, dict[int, ClientScores]]:
        """Score clients that never train, as they come and after adapting to their own test data.

        Args:
            round: the round that has just ended.
            download: what they would receive.
            ids: whom to score.
            given: what all workers have accumulated in ``state_for_new_clients``.

        Returns:
            Evaluation point -> client -> scores. The points are ``unseen`` and, for methods that adapt,
            ``unseen_adapted`` and ``unseen_control``, an adaptation whose steps have length 0.
        """
        download, splits = self._download_on_device(download), self.data.test_splits
        mean = self.for_new_clients(*given).everyone
        found: dict[str, dict[int, ClientScores]] = {}
        for i in ids:
            own = self._client_download(download, i)
            client = self.client(i, round)
            states = {"unseen": self._state_or_initial({}, client, mean)}
            if self.method.overrides("adapt"):
                for point, moves in (("unseen_adapted", True), ("unseen_control", False)):
                    new = self.client(i, round, unlabelled=True)
                    update = self.method.adapt(new, states["unseen"], own, moves)
                    states[point] = run_loop([update], lambda k, fitted: None)[0]
            for point, state in states.items():
                predict = self._predict(client, state, own)
                found.setdefault(point, {}).update(self._score({i: predict}, round, splits))
        if self.plan.finetune.epochs:
            tuned = self.finetune(round, download, [(i,) for i in ids], splits, Download(mean, {}), ())
            for i, scores in tuned.items():
                for split, views in scores.items():
                    found["unseen"][i][split] |= views
        return found

    # ---- state that moves or is saved

    def share_memory(self, workers: int) -> None:
        """Set how many workers share this machine's memory."""
        self.states.set_worker_count(workers)

    def states_of(self, ids: Iterable[int]) -> States:
        """Return the states of the clients that have one here."""
        return States({i: self.states[i] for i in ids if i in self.states})

    def hand_over(self, ids: Iterable[int]) -> States:
        """Return the states of clients and forget them: they move to another worker."""
        return States({i: self.states.pop(i) for i in ids if i in self.states})

    def save(self, folder: str, number: int, ids: Iterable[int], *others: States) -> str | None:
        """Write a client file: the states of ``ids``, and those that other workers sent; return its name."""
        states = self.states_of(ids)
        for sent in others:
            states |= sent
        return Checkpoints(Path(folder)).write_clients(number, states)

    def restore(self, folder: str, names: Iterable[str]) -> list[int]:
        """Load the states in some client files, and drop all others; return the clients' numbers.

        Args:
            folder: the run's checkpoints.
            names: of the files.
        """
        self.states.clear()
        for name in names:  # file by file: all states together may be more than fits into memory
            self.states.update(Checkpoints(Path(folder)).read(name))
        return list(self.states)


def state_of_method(state: State) -> State:
    """Return a client's state without what optimisers and transforms keep, which methods do not see."""
    hidden = state.keys() & {KEPT, MEMORY}
    return {key: value for key, value in state.items() if key not in hidden} if hidden else state


def _check_awaited(name: str, one: _ClientUpdate) -> None:
    """Refuse fits that nobody has awaited.

    Args:
        name: of the hook, for the error.
        one: the client, with the fits that have ended.
    """
    if one.client._fits != len(one.fits):
        raise BadCode(
            name,
            f"awaits {len(one.fits)} of {one.client._fits} calls of client.fit",
            "write `await client.fit(...)`",
        )


def _training_problem(one: _ClientUpdate, state: State) -> str | None:
    """Return what is not finite after a client's training: a loss of any fit, or its new state; else None."""
    if diverged := [fit.loss for fit in one.fits if not math.isfinite(fit.loss)]:
        return f"the training loss is {diverged[0]}"
    if not all_finite(state):
        return "the personal state is not finite"
    return None if all_finite(one.client._kept or {}) else "what the optimiser keeps is not finite"
