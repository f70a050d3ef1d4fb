"""A federation's running processes: which of them does what in a round, an evaluation, a checkpoint.

The same code serves all engines: ``Workers`` carries calls to the server and the workers, in this process or
on other hosts. The session sees references and small numbers, and no tensors.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rayfl.data import FederatedData
from rayfl.engine.base import SERVER, ClientGroup, ClusterLost, Plan, Workers, WorkersLost
from rayfl.engine.models import Models, local_pair
from rayfl.engine.placement import Pace, place_groups
from rayfl.engine.travel import EMPTY_DOWNLOAD, Hook, RoundResult
from rayfl.errors import Conflict, Shortage
from rayfl.evaluation.score import ClientScores, replaced
from rayfl.record.checkpoint import CLIENTS_PER_FILE, Checkpoints, Manifest, clients_per_file

Ids = Sequence[int]


class BadUpdate(Conflict):
    """A client's update cannot be used, and the run's policy is to stop."""


@dataclass
class SystemMetrics:
    """The cost of a round, for ``engine.jsonl``: it may differ from run to run.

    Attributes:
        actors: clients trained per worker.
        moved: clients whose state moved to another worker.
        bytes_down: bytes of the one download object.
        bytes_up: bytes of all accumulated uploads.
        busy: seconds of training per worker.
        dropped: what was wrong with updates that were not used, by client.
        hosts: the software of a cluster's hosts, by their names.
    """

    actors: list[int] = field(default_factory=list)
    moved: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    busy: list[float] = field(default_factory=list)
    dropped: dict[int, str] = field(default_factory=dict)
    hosts: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)


class Session:
    """A federation whose processes are running. Use it as a context manager.

    Args:
        plan: the federation.
        data: the data, in memory that all processes share.
        workers: the processes, not yet started; closed with the session.

    Attributes:
        system_metrics: the cost of the last round.
        owner_of: client -> the worker that holds its state.

    Raises:
        UserError: they cannot be started.
    """

    def __init__(self, plan: Plan, data: FederatedData, workers: Workers) -> None:
        self.plan = plan
        self.data = data
        self.workers = workers
        self.system_metrics = SystemMetrics()
        self._pace = Pace(data.counts("train"))
        self._one_download = not plan.method.overrides("download_for")
        self._has_metrics = plan.method.overrides("server_metrics")
        self._losses = 0  # since the last checkpoint
        self._resume = "--resume"  # a run that has not begun has no folder yet
        self._changed: set[int] = set()  # clients trained since the last checkpoint
        self._stateless: set[int] = set()  # clients that have trained, and keep nothing
        self._files: dict[int, str] = {}  # number of the client file -> its name in the last checkpoint
        self._per_file = CLIENTS_PER_FILE  # clients in each of these
        self._largest_state = 0  # bytes
        self._cleared = True  # processes may be missing, or hold states from before a loss
        self._forget_processes()
        try:
            while self._cleared:
                try:
                    workers.start(allow_fewer=False)
                    self._cleared = False
                except WorkersLost as lost:
                    self.clear_loss(lost)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        try:
            if kind is None:
                self.finish_pending()
        finally:
            self.close()

    def _forget_processes(self) -> None:
        """Forget what processes hold."""
        self.owner_of: dict[int, int] = {}
        self._newest_download: Any = None  # of the newest server state, if it is the same for all clients
        self._under_way: list[Any] = []  # references that nobody has waited for
        self._last_step: tuple[int, Any] | None = None  # of a round, and its sign

    def _get(self, references: Sequence[Any], usual: float | None = None) -> list[Any]:
        under_way, self._under_way = self._under_way, []
        return self.workers.get([*under_way, *references], usual)[len(under_way) :]

    # ---- a round

    def train(
        self,
        round: int,
        groups: Sequence[ClientGroup],
        on_bad_update: Literal["stop", "drop"] = "stop",
        score_splits: Sequence[str] = (),
    ) -> RoundResult:
        """Run one round: download, local training, accumulation, aggregation.

        Args:
            round: from 0.
            groups: the cohort, as ``Engine.groups`` has cut it.
            on_bad_update: whether a bad update stops the run or leaves its client out of this round; and
                whether an exception in a client's training is raised, or counts as a bad update.
            score_splits: splits of the data on which each client is scored right after its training.

        Raises:
            BadUpdate: an update is not finite, or has diverged, and the policy is to stop.
            WorkersLost: processes have died; all methods of a session may raise it.
        """
        result = self._train("local_update", round, groups, score_splits, on_bad_update == "drop")
        self._pace.learn(result.seconds)
        self.system_metrics.dropped |= self._sort_and_check(round, result, on_bad_update)
        self._largest_state = max(self._largest_state, result.largest_state)
        self._changed.update(i for i in result.ids if i in self.owner_of and i not in result.bad)
        self._stateless |= {*result.ids} - result.bad.keys()
        self._stateless -= result.keeps
        return result

    def exchange(
        self, round: int, groups: Sequence[ClientGroup], on_bad_update: Literal["stop", "drop"] = "stop"
    ) -> RoundResult:
        """Let clients upload before a round's training, and the server keep it; see ``Method.before_round``.

        Args:
            round: from 0.
            groups: who uploads, as ``Engine.groups`` has cut them.
            on_bad_update: as for ``train``; a client whose upload is left out trains in the round.

        Raises:
            BadUpdate: an upload is not finite, and the policy is to stop.
        """
        result = self._train("before_round", round, groups, (), on_bad_update == "drop")
        self.finish_pending()
        self._sort_and_check(round, result, on_bad_update)
        return result

    def _sort_and_check(
        self, round: int, result: RoundResult, on_bad_update: Literal["stop", "drop"]
    ) -> dict[int, str]:
        """Put the clients in order; return the bad ones, or stop at them."""
        result.sort()
        if result.bad and on_bad_update == "stop":
            warning = self.plan.method.warning(self.plan.training, self.data, {})
            raise BadUpdate(f"client {min(result.bad)}", _bad_update_text(round, result.bad, warning))
        return dict(sorted(result.bad.items()))

    def _train(
        self, hook: Hook, round: int, groups: Sequence[ClientGroup], score_splits: Sequence[str], drop: bool
    ) -> RoundResult:
        """Let the workers train and the server aggregate; return the results of the workers."""
        self.workers.add_workers()
        moved, calls = self._run_on_groups("train", groups, round, score_splits, drop, hook, returns=2)
        sums = self._sums_per_host({k: accumulated for k, (accumulated, _) in calls.items()})
        waiting = [reply for _, reply in calls.values()]
        ends = [hook, round, drop, len(sums), *sums, *waiting]
        download, done = self.workers.call(SERVER, "aggregate", *ends, returns=2)
        replies = self._get(waiting, self._pace.seconds(groups))
        self._under_way = [done]  # while the driver writes its records
        self._last_step = round, done
        self._newest_download = download if self._one_download else None
        result, metrics = RoundResult(), SystemMetrics(moved=moved, hosts=self.workers.hosts)
        for k, reply in zip(calls, replies, strict=True):
            result.merge(reply)
            self.owner_of.update(dict.fromkeys(reply.keeps, k))
            metrics.actors.append(len(reply.ids))
            metrics.busy.append(sum(reply.seconds.values()))
            metrics.bytes_down, metrics.bytes_up = reply.bytes_down, metrics.bytes_up + reply.bytes_up
        self.system_metrics = metrics
        return result

    def _run_on_groups(
        self,
        name: str,
        groups: Sequence[ClientGroup],
        round: int,
        *further: Any,
        returns: int = 1,
    ) -> tuple[int, dict[int, Any]]:
        """Call an operation of the workers for groups of clients, with their downloads and their states.

        Returns:
            How many clients move, and the references of the results, by worker.
        """
        placed = place_groups(groups, self._pace.cost, self._usual_owner, len(self.workers))
        arrivals, moved = self._move_states(placed)
        calls = {}
        for k, (mine, states) in enumerate(zip(placed, arrivals, strict=True)):
            if mine:
                download = self._download([i for group in mine for i in group])
                calls[k] = self.workers.call(
                    k, name, round, download, mine, *further, *states, returns=returns
                )
        return moved, calls

    def _sums_per_host(self, parts: dict[int, Any]) -> list[Any]:
        """Let each host except the server's send one sum: sums are exact, so no bit changes."""
        hosts: dict[Any, list[int]] = {}
        for k in parts:
            hosts.setdefault(self.workers.host_of(k), []).append(k)
        here = hosts.pop(self.workers.host_of(SERVER), [])
        return [parts[k] for k in here] + [
            parts[mine[0]] if len(mine) == 1 else self.workers.call(mine[0], "add_up", *map(parts.get, mine))
            for mine in hosts.values()
        ]

    def _download(self, ids: Iterable[int]) -> Any:
        """Return the reference of the download of these clients, from the newest server state.

        One that differs from client to client is made for those of one worker, and is not kept.
        """
        if not self._one_download:
            return self.workers.call(SERVER, "download", tuple(ids))
        if self._newest_download is None:
            self._newest_download = self.workers.call(SERVER, "download", ())
        return self._newest_download

    def _move_states(self, placed: Sequence[Sequence[ClientGroup]]) -> tuple[list[list[Any]], int]:
        """Move the states of clients that train on another worker than the one that holds them."""
        arrivals: list[list[Any]] = []
        moved = 0
        for k, mine in enumerate(placed):
            leaving = self._ids_by_owner(i for group in mine for i in group)
            leaving.pop(k, None)
            self.owner_of.update((i, k) for ids in leaving.values() for i in ids)
            arrivals.append([self.workers.call(home, "hand_over", ids) for home, ids in leaving.items()])
            moved += sum(map(len, leaving.values()))
        return arrivals, moved

    def _usual_owner(self, group: ClientGroup) -> int | None:
        owners = [self.owner_of[i] for i in group if i in self.owner_of]
        return max(set(owners), key=owners.count) if owners else None

    def _ids_by_owner(self, ids: Iterable[int]) -> dict[int, list[int]]:
        """Return the clients that have a state, by the worker that holds it."""
        found: dict[int, list[int]] = {}
        for i in ids:
            if i in self.owner_of:
                found.setdefault(self.owner_of[i], []).append(i)
        return found

    # ---- between rounds

    def evaluate(
        self,
        round: int,
        ids: Ids,
        splits: Sequence[str],
        untrained: Ids = (),
        tuned: Sequence[ClientGroup] = (),
        personalises: bool = True,
    ) -> dict[int, ClientScores]:
        """Score clients with the newest server state and their own.

        They are scored where their state is, and those without state wherever there is least to do.

        Args:
            round: the round that has just ended.
            ids: whom to score.
            splits: splits of the data.
            untrained: those of them that have never trained, and count as ``Method.fallback`` says.
            tuned: those that are fine-tuned besides, as ``Engine.groups`` has cut them.
            personalises: whether the method's ``personalise`` is asked for, if it has one.
        """
        by, given = self.plan.counts_by, EMPTY_DOWNLOAD
        if untrained and by is None:
            given = self.workers.call(0, "for_new_clients", *self._new_client_states())
        if personalises and self.plan.method.overrides("personalise"):
            # It is training: a stack is the same on all workers. Who counts by another view needs none.
            groups, chosen = self.plan.engine.groups(ids), {*ids} - {*(untrained if by else ())}
            calls = [*self._run_on_groups("evaluate", groups, round, splits, given, chosen)[1].values()]
        else:
            counts = (self.data.counts(split)[list(ids)] for split in splits)
            placed = self._place_clients(ids, sum(counts, np.zeros(len(ids), np.int64)).tolist())
            calls = [
                self.workers.call(k, "evaluate", round, self._download(mine), [mine], splits, given)
                for k, mine in enumerate(placed)
                if mine
            ]
        scores: dict[int, ClientScores] = {}
        for found in self._get(calls):
            scores.update(found)
        for i in scores.keys() & set(untrained):
            scores[i] = {split: replaced(views, by) for split, views in scores[i].items()}
        _, calls_of = self._run_on_groups("finetune", tuned, round, splits, given, untrained)
        for found in self._get([*calls_of.values()]):
            for i, splits_of in found.items():
                scores[i] = {split: scores[i][split] | views for split, views in splits_of.items()}
        return scores

    def _new_client_states(self) -> list[Any]:
        """Return references of what clients give to those that have never trained, by worker."""
        hosted = self._ids_by_owner(self.owner_of)
        return [self.workers.call(k, "state_for_new_clients", mine) for k, mine in hosted.items()]

    def _place_clients(self, ids: Sequence[int], work: Sequence[int]) -> list[list[int]]:
        """Return which clients each worker scores: those whose state it has, and its share of the others.

        Args:
            ids: the clients.
            work: the cost of scoring each.
        """
        placed: list[list[int]] = [[] for _ in range(len(self.workers))]
        load = [0] * len(placed)
        both = zip(ids, work, strict=True)
        for i, size in sorted(both, key=lambda pair: pair[0] not in self.owner_of):
            k = self.owner_of.get(i, min(range(len(load)), key=load.__getitem__))
            placed[k].append(i)
            load[k] += size
        return placed

    def unseen(self, round: int) -> dict[str, dict[int, ClientScores]]:
        """Score clients that never train, dealt out to the workers in turn; see ``Worker.unseen``."""
        ids = range(self.data.seen, len(self.data))
        given = self._new_client_states()
        count = len(self.workers)
        calls = [
            self.workers.call(k, "unseen", round, self._download(mine), mine, *given)
            for k in range(count)
            if (mine := ids[k::count])
        ]
        points: dict[str, dict[int, ClientScores]] = {}
        for found in self._get(calls):
            for point, scores in found.items():
                points.setdefault(point, {}).update(scores)
        return {point: dict(sorted(scores.items())) for point, scores in points.items()}

    def server_metrics(self) -> dict[str, float | list[float]]:
        """Return what the method records of the newest server state."""
        if not self._has_metrics:
            return {}
        metrics: dict[str, float | list[float]] = self._get([self.workers.call(SERVER, "server_metrics")])[0]
        return metrics

    def finish_pending(self) -> None:
        """Wait for unfinished work, and raise its errors."""
        self._get([])

    def failed_step(self) -> int | None:
        """Return the round whose step on the server has failed, which may show when its record is written."""
        if self._last_step is None:
            return None
        round, done = self._last_step
        try:
            self.workers.get([done])
        except (WorkersLost, ClusterLost):
            return None
        except Exception:  # which stops the run and is reported
            return round
        return None

    # ---- checkpoints

    def save(
        self, folder: Path, round: int, progress: dict[str, Any], settings: dict[str, Any], best: int = 0
    ) -> None:
        """Write a checkpoint of the state after all rounds before ``round``.

        Args:
            folder: the run's checkpoints.
            round: the next round.
            progress: what the driver keeps, as plain JSON.
            settings: the settings that decide the numbers, see ``Manifest``.
            best: see :meth:`rayfl.record.checkpoint.Checkpoints.commit`.
        """
        where = str(folder.resolve())  # workers on a cluster that was joined run in another folder
        if not self._files:
            self._per_file = clients_per_file(self._largest_state)
        per_file = self._per_file
        stale = sorted({i // per_file for i in self._changed})
        server = self.workers.call(SERVER, "save", where)
        calls = {
            number: self._save_clients(where, number, hosted)
            for number in stale
            # none where the method keeps no state
            if (hosted := self._ids_by_owner(range(number * per_file, (number + 1) * per_file)))
        }
        name, *names = self._get([server, *calls.values()])
        for number, file in zip(calls, names, strict=True):
            if file:
                self._files[number] = file
            else:  # its clients keep nothing any more
                self._files.pop(number, None)
        files = {number: self._files[number] for number in sorted(self._files)}
        without = sorted(self._stateless)
        Checkpoints(folder).commit(Manifest(round, name, files, progress, settings, per_file, without), best)
        self._changed = set()
        self._losses = 0

    def models(self, round: int, trained: Container[int]) -> Models:
        """Return the models of all clients, with all states in this process.

        Args:
            round: rounds that are over.
            trained: clients of which an update has been used.
        """
        worker, server = local_pair(self.plan, self.data)
        server.state = self._get([self.workers.call(SERVER, "states")])[0][0]
        hosted = self._ids_by_owner(range(self.data.seen))
        for k, ids in hosted.items():  # some at a time: all together may be more than fits into memory
            for start in range(0, len(ids), CLIENTS_PER_FILE):
                some = self.workers.call(k, "states_of", ids[start : start + CLIENTS_PER_FILE])
                worker.states.update(self._get([some])[0])
        return Models(worker, server, round, trained)

    def _save_clients(self, folder: str, number: int, hosted: dict[int, list[int]]) -> Any:
        """Let the worker that holds most of a client file's states write it; the others send it theirs."""
        writer = max(hosted, key=lambda k: len(hosted[k]))
        others = [self.workers.call(k, "states_of", ids) for k, ids in hosted.items() if k != writer]
        return self.workers.call(writer, "save", folder, number, hosted[writer], *others)

    def restore(self, folder: Path, manifest: Manifest | None) -> None:
        """Load the state of a checkpoint, or without one the state before the first round.

        After a loss, missing processes are started, and the others load the state as well.
        """
        self._resume = f"--resume {folder.parent}"
        if self._cleared:
            self.workers.start(allow_fewer=True)
        self._changed = set()
        self._stateless = set(manifest.stateless) if manifest else set()
        self._files = dict(manifest.clients) if manifest else {}
        self._per_file = manifest.clients_per_file if manifest else CLIENTS_PER_FILE
        self._largest_state = 0
        if manifest or self._cleared:
            where, files, count = str(folder.resolve()), list(self._files.values()), len(self.workers)
            server = self.workers.call(SERVER, "restore", where, manifest.server if manifest else None)
            calls = [self.workers.call(k, "restore", where, files[k::count]) for k in range(count)]
            for k, ids in enumerate(self._get([*calls, server])[:count]):
                self.owner_of.update(dict.fromkeys(ids, k))
        self._cleared = False

    def late_code(self) -> dict[str, str]:
        """Return digests of the user's own modules that workers have imported since they began.

        Workers that die now take what they know with them: the run is over, and needs them no more.
        """
        try:
            calls = [self.workers.call(k, "late_code") for k in range(len(self.workers))]
            return {name: digest for found in self._get(calls) for name, digest in found.items()}
        except (WorkersLost, ClusterLost):
            return {}

    # ---- losses, and the end

    def check(self) -> None:
        """Check that the cluster of the processes is alive.

        Raises:
            ClusterLost: it is not.
        """
        self.workers.check()

    def clear_loss(self, lost: WorkersLost) -> None:
        """Keep the processes that are alive after a loss; ``restore`` goes on, because the round is lost.

        Raises:
            UserError: this has happened too often.
        """
        self.check()
        self._losses += 1
        if self._losses > self.workers.recoveries:
            often = f", {self._losses} times since the last checkpoint" if self._losses > 1 else ""
            raise Shortage(
                f"{lost}{often}. The run stops with its last checkpoint intact: free memory or use fewer "
                f"actors, and go on with {self._resume}"
            ) from lost
        self.workers.keep_survivors()
        self._forget_processes()
        self._cleared = True

    def close(self) -> None:
        """Stop the processes."""
        self.workers.close()


def _bad_update_text(round: int, bad: dict[int, str], warning: str | None) -> str:
    first, *others = sorted(bad)
    more = f" ({len(others)} more clients have bad updates: {others[:10]})" if others else ""
    return (
        f"in round {round}: {bad[first]}{more}. The run stops, with its records and checkpoints "
        "intact. on_bad_update=drop leaves such updates out; where training has diverged, try a smaller "
        f"training.lr or training.clip{'' if warning is None else f'. Beware: {warning}'}"
    )
