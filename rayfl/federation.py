"""A federation: a method, data split over clients, a number of rounds; and the loop that runs it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import yaml

from rayfl.callbacks.terminal import Progress, print_start
from rayfl.data import Data, EmbeddedDigits, FederatedData
from rayfl.engine.base import Engine, Gone, Lost, Session
from rayfl.engine.host import Plan, Report, Scores, bind, try_scores
from rayfl.engine.ray_engine import Ray
from rayfl.errors import UserError
from rayfl.evaluation.metrics import Patience, Validation, round_figures
from rayfl.evaluation.protocol import Protocol
from rayfl.evaluation.protocol import protocol as find_protocol
from rayfl.evaluation.result import Result
from rayfl.methods import METHODS, FedBN, Method
from rayfl.randomness import generator
from rayfl.record.cell import Cell
from rayfl.record.checkpoint import Checkpoints, Manifest
from rayfl.record.description import deciding, dump
from rayfl.record.folder import RunFolder, check_same_data, check_unused, held
from rayfl.record.history import CONFIG, METRICS, SUMMARY, read_lines
from rayfl.report.summary import final_table
from rayfl.shown import complain, tell
from rayfl.signals import answered
from rayfl.streams import lasting_output
from rayfl.training import Net, Training

# Defaults may be shared: a run works on copies, and none of its steps changes them.
DEFAULT_METHOD, DEFAULT_DATA, DEFAULT_TRAINING, DEFAULT_ENGINE = FedBN(), EmbeddedDigits(), Training(), Ray()


AfterRound = Callable[[Mapping[str, Any], Callable[[], None]], None]
"""Called with the metrics line of a round that is over, and a function that writes a checkpoint after it."""


class Federation:
    """One experiment, ready to run.

    Args:
        method: what clients compute, what travels, how the server combines it.
        data: the data set and how it is divided.
        net: name of the net, or ``module.function`` of one's own. With a list of them, client k has number
            k modulo their count: for methods that do not average whole nets.
        clients: number of clients, at least 1.
        unseen: a domain whose clients never train: they are scored as newcomers, with and without adapting
            to their images, if the method can.
        participation: share of the clients sampled in a round, in (0, 1].
        rounds: number of rounds, at least 1.
        training: how clients train.
        engine: where clients run: ``Ray`` or ``Inline``.
        averaging: weights of means over clients, ``samples`` or ``uniform``; the method's own if not given.
        eval_every: rounds between two evaluations of all clients; 0 evaluates never.
        protocol: what is scored when, and which figure is the headline: ``default`` or a paper's preset.
        checkpoint_every: rounds between two checkpoints; one is also written at the end. 0 writes none.
        on_bad_update: what an update with NaN or infinity does, a client that raises, or one that exceeds
            ``engine.client_timeout``: ``stop`` the run, or ``drop`` the client's update of this round.
        seed: of everything random.
        output: the run folder; by default a fresh ``runs/<time>-<method>``.
        tensorboard: whether to write TensorBoard events.
        quiet: print nothing but warnings.
        cell: the cell of a table of experiments that the run is, if it is one; reports go by it.
    """

    def __init__(
        self,
        method: Method = DEFAULT_METHOD,
        data: Data = DEFAULT_DATA,
        net: list[str] | str = "cnn-b",
        clients: int = 5,
        unseen: str | None = None,
        participation: float = 1.0,
        rounds: int = 20,
        training: Training = DEFAULT_TRAINING,
        engine: Engine = DEFAULT_ENGINE,
        averaging: Literal["samples", "uniform"] | None = None,
        eval_every: int = 1,
        protocol: str = "default",
        checkpoint_every: int = 10,
        on_bad_update: Literal["stop", "drop"] = "stop",
        seed: int = 0,
        output: str | None = None,
        tensorboard: bool = True,
        quiet: bool = False,
        cell: Cell | None = None,
    ) -> None:
        self.method = method
        self.data = data
        self.net = net
        self.clients = clients
        self.unseen = unseen
        self.participation = participation
        self.rounds = rounds
        self.training = training
        self.engine = engine
        self.averaging = averaging
        self.eval_every = eval_every
        self.protocol = protocol
        self.checkpoint_every = checkpoint_every
        self.on_bad_update = on_bad_update
        self.seed = seed
        self.output = output
        self.tensorboard = tensorboard
        self.quiet = quiet
        self.cell = cell
        if type(self) is not Federation:
            raise UserError(
                f"{type(self).__name__} is derived from Federation: config.yaml records only the options of "
                "Federation, and a resumed run would go on without your changes. Make a Federation, and put "
                "what is yours into a method, a data set or a partition"
            )
        dump(self)  # refuses values of other types, which the comparisons below could not take
        self.clients, self.rounds, self.seed = int(clients), int(rounds), int(seed)  # NumPy has its own
        for name, value, fine, allowed in [
            ("net", net, len(net) > 0, "a name, or a list of at least one"),
            ("clients", clients, clients >= 1, "at least 1"),
            ("participation", participation, 0 < participation <= 1, "above 0 and at most 1"),
            ("rounds", rounds, rounds >= 1, "at least 1"),
            ("eval_every", eval_every, eval_every >= 0, "at least 0 (0: never)"),
            ("checkpoint_every", checkpoint_every, checkpoint_every >= 0, "at least 0 (0: none)"),
        ]:
            if not fine:
                raise UserError(f"{name} is {value!r}: it must be {allowed}")
        self._protocol = find_protocol(protocol)
        self._resumes = False
        self.after_round: AfterRound | None = None

    # ---- running

    def run(self) -> Result:
        """Run all rounds, or those that are left of a resumed run; return the records.

        A SIGINT, SIGTERM or SIGHUP ends the run after the round in progress, with a checkpoint; the result
        then has ``complete`` false.

        Raises:
            UserError: the settings are impossible, data are missing, or the run folder is in use; raised
                before any actor is started. Or: an update is bad and the policy is to stop.
        """
        folder_path = self._folder()
        with ExitStack() as stack:
            stack.enter_context(lasting_output())
            if self._resumes:
                stack.enter_context(held(folder_path))
            else:
                check_unused(folder_path)
            return self._run(folder_path, stack)

    def _run(self, folder_path: Path, stack: ExitStack) -> Result:
        if self._resumes and (done := self._finished(folder_path)):
            if not self.quiet:
                final_table(done.summary)
            return done
        self.engine = copy(self.engine)
        self.engine.resolve()
        with self.engine.preparing():
            data = self.federated_data()
            for remark in self.check(data):
                _warn(remark)
            plan = self._plan()
            manifest = self._manifest(folder_path, data) if self._resumes else None
            start = manifest.round if manifest else 0
            if not self.quiet:
                self._print_start(folder_path, start, data)
        data = self.engine.share(data)
        with (
            self.engine.open(plan, data) as session,
            Progress(self.rounds, start, self.quiet) as progress,
            _asked_to_stop() as asked,
        ):
            manifest = self._restore(manifest, session, folder_path, progress)
            # Nothing is written before this line: a run that cannot go on stays as it is.
            folder = self._open(folder_path, manifest.round if manifest else 0, data)
            if not self._resumes:
                stack.enter_context(held(folder_path))
            stopped = self._carry_out(manifest, session, folder, progress, asked)
        if stopped is None:
            result = folder.finish()
            if not self.quiet:
                final_table(result.summary)
            return result
        folder.close()
        if not self.quiet:
            tell(f"Stopped before round {stopped + 1} of {self.rounds}; go on with --resume {folder_path}")
        return Result.load(folder_path)

    def _finished(self, path: Path) -> Result | None:
        """Return the records of a run that is over and has no checkpoint to go on from."""
        if Checkpoints(path / "checkpoints").exist or not (path / SUMMARY).is_file():
            return None
        result = Result.load(path)
        return result if result.complete and result.summary["rounds"] == self.rounds else None

    def _restore(
        self, manifest: Manifest | None, session: Session, path: Path, progress: Progress
    ) -> Manifest | None:
        """Give the processes the state of a checkpoint; where some die, start anew from the newest one.

        Returns:
            The checkpoint from which the run goes on.
        """
        while True:
            try:
                session.restore(path / "checkpoints", manifest)
                return manifest
            except Exception as error:
                lost = _loss(session, error)
                if isinstance(lost, Gone):
                    begun = (path / CONFIG).is_file()
                    way = f"go on with --resume {path}" if begun else "start the run again"
                    raise UserError(f"{lost}: {way}") from error
                manifest = self._newest(path, session.data)
                progress.go_back(manifest.round if manifest else 0)
                _warn(f"{lost}; {_going_on(manifest)}")

    def _carry_out(
        self,
        manifest: Manifest | None,
        session: Session,
        folder: RunFolder,
        progress: Progress,
        asked: threading.Event,
    ) -> int | None:
        """Run the rounds that are left; where processes die, go back to the newest checkpoint and replay.

        Returns:
            None, or the round before which a signal has stopped the run.
        """
        while True:
            try:
                stopped = self._rounds(manifest, session, folder, progress, asked)
                session.settle()
                if remark := self.method.remark(session.figures()):
                    _warn(remark)
                return stopped
            except Exception as error:  # which may be anything, should what the session runs on be gone
                lost = _loss(session, error)
                if isinstance(lost, Gone) and not asked.is_set():
                    raise UserError(
                        f"{lost}. The run stops with its last checkpoint intact: go on with "
                        f"--resume {folder.path}"
                    ) from error
                manifest = self._roll_back(lost, session, folder, progress)
                if asked.is_set():
                    return manifest.round if manifest else 0
                manifest = self._restore(manifest, session, folder.path, progress)

    def _roll_back(
        self, lost: Gone | Lost, session: Session, folder: RunFolder, progress: Progress
    ) -> Manifest | None:
        """Take the records back to the newest intact checkpoint, or to the start where there is none."""
        manifest = self._newest(folder.path, session.data)
        start = manifest.round if manifest else 0
        folder.truncate(start)
        folder.append_engine({"lost": str(lost), "back_to": start})
        progress.go_back(start)
        _warn(f"{lost}; {_going_on(manifest)}")
        return manifest

    def _rounds(
        self,
        manifest: Manifest | None,
        session: Session,
        folder: RunFolder,
        progress: Progress,
        asked: threading.Event,
    ) -> int | None:
        """Run the rounds after a checkpoint; return None, or the one before which a signal has stopped."""
        checkpoints = folder.path / "checkpoints"
        settings = self.deciding(session.data)
        scores = Standing(session.data, manifest.progress if manifest else {})
        early = EarlyEnd(folder, self._protocol)
        if early.reached:
            return None
        began = time.perf_counter()
        for round in range(manifest.round if manifest else 0, self.rounds):
            evaluates = self._protocol.evaluates(round, self.rounds, self.eval_every)
            scores.before_first_round(round, session, self._scores_untrained)
            report = session.train(
                round,
                self.engine.blocks(self.cohort(round, session.data.seen)),
                self.on_bad_update,
                scores.parts if self._scores_training(evaluates) else (),
            )
            trained = time.perf_counter()
            scores.after_training(report)
            record = _record(round, report, session.data)
            if evaluates:
                current = session.evaluate(round, scores.clients, scores.parts)
                record["evaluation"] = scores.evaluation(current, self._protocol.point)
                if session.data.unseen:
                    record["evaluation"] |= scores.unseen(session.unseen(round))
            if figures := session.figures():
                record["figures"] = figures
            if report.bad:
                _warn(_dropped_text(round, report.bad))
            folder.append_metrics(record)
            progress.update(round_figures(record, folder.population, self._protocol))
            began, before = time.perf_counter(), began
            times = {"seconds": began - before, "train_seconds": trained - before}
            folder.append_engine({"round": round, **times, **asdict(session.facts)})
            last = round == self.rounds - 1 or early.after(record)
            due = self.checkpoint_every and ((round + 1) % self.checkpoint_every == 0 or last)
            if due or (asked.is_set() and not last):
                session.save(checkpoints, round + 1, scores.progress(), settings)
            if self.after_round is not None:
                save = partial(session.save, checkpoints, round + 1, scores.progress(), settings)
                self.after_round(record, save)
            if last:
                return None
            if asked.is_set():
                return round + 1
        return None

    def federated_data(self) -> FederatedData:
        """Return the data, divided among the clients.

        Raises:
            UserError: they are missing, or cannot be divided like this.
        """
        data = self.data.federate(self.clients, self.seed)
        return data if self.unseen is None else data.hold_out(self.unseen)

    def cohort(self, round: int, seen: int | None = None) -> list[int]:
        """Return the clients sampled in a round, ascending: uniform, without replacement, at least one.

        Args:
            round: from 0.
            seen: how many clients may train, the first ones; all if not given.
        """
        seen = self.clients if seen is None else seen
        size = max(1, math.floor(self.participation * seen + 1e-9))
        order = torch.randperm(seen, generator=generator(self.seed, "cohort", round))
        return sorted(order[:size].tolist())

    def deciding(self, data: FederatedData | None = None) -> dict[str, Any]:
        """Return everything that decides the run's numbers, by name; checkpoints carry it.

        Args:
            data: what ``federated_data`` returns; the settings alone if not given.
        """
        return deciding(yaml.safe_load(dump(self))) | ({"division": data.digest()} if data else {})

    # ---- before the run

    def _plan(self) -> Plan:
        method = copy(self.method)
        if self.averaging is not None:
            method.averaging = self.averaging
        engine = self.engine
        return Plan(
            method=method,
            net=self.net,
            training=self.training,
            seed=self.seed,
            execution="stacked" if engine.execution == "stacked" else "loop",
            device=engine.device,
            threads=engine.threads,
            channels_last=engine.memory_format == "channels_last",
            deterministic=engine.deterministic,
            client_timeout=engine.client_timeout,
        )

    def check(self, data: FederatedData) -> list[str]:
        """Refuse what cannot work before any process is started; return what the user should know besides.

        Args:
            data: what ``federated_data`` returns.

        Raises:
            UserError: method, net, data, training and protocol do not go together.
        """
        plan = self._plan()
        method = copy(plan.method)
        nets = bind(method, plan, data)
        self._check_unseen(plan.method, nets, data)
        if type(method) not in METHODS.values():  # a method of the user's own
            try_scores(method, nets[0], plan, data)
        if self._protocol.needs_validation and not any(len(s.val) for s in data.shards[: data.seen]):
            raise UserError(
                f"protocol {self.protocol} goes by validation accuracy, and the data have no validation "
                "part: set data.val_fraction, for example to 0.1, or choose another protocol"
            )
        remarks = self._check_batches(nets, data)
        if type(method).shared is not Method.shared and method.shares_everything:
            remarks.append(
                f"{type(method).__name__} leaves a part of the net with the clients, such as BatchNorm, and "
                f"{self.net} has no such part: all of it is averaged"
            )
        return remarks

    def _check_batches(self, nets: Sequence[Net], data: FederatedData) -> list[str]:
        """Refuse batches that are too small for BatchNorm, and remark those that are nearly so."""
        names = [self.net] if isinstance(self.net, str) else self.net
        normed = [name for name, net in zip(names, nets, strict=True) if net.has_batch_norm]
        if not normed:
            return []
        if self.training.batch_size == 1:
            raise UserError(
                f"training.batch_size is 1, but {normed[0]} has BatchNorm, which needs at least 2 "
                "samples to a batch: use a larger batch_size or a net without BatchNorm"
            )
        of_normed = [
            (i, s) for i, s in enumerate(data.shards[: data.seen]) if nets[i % len(nets)].has_batch_norm
        ]
        single = [i for i, s in of_normed if len(s.train) == 1]
        if single and self.training.bn_single == "refuse":
            name = names[single[0] % len(names)]
            raise UserError(
                f"client {single[0]} has one training sample ({len(single)} such clients), on which a "
                f"net with BatchNorm ({name}) cannot train: use fewer clients or another partition, "
                "or --training.bn_single eval to train them with running statistics"
            )
        few = [i for i, s in of_normed if 2 <= self._remainder(len(s.train)) <= 3]
        if not few:
            return []
        return [
            f"client {few[0]} ({len(few)} such clients) has a last batch of 2 or 3 samples, of which "
            "BatchNorm has poor statistics: choose another training.batch_size, or "
            "training.last_batch=drop, should accuracy break down"
        ]

    def _check_unseen(self, method: Method, nets: Sequence[Net], data: FederatedData) -> None:
        """Refuse newcomers who have nothing to be scored on, or to whom the method cannot adapt."""
        for i, shard in enumerate(data.shards[data.seen :], data.seen):
            if method.adapts and not nets[i % len(nets)].has_batch_norm:
                raise UserError(
                    f"unseen={self.unseen!r}: {type(method).__name__} adapts to a domain by the statistics "
                    "of BatchNorm, and the net has none: use a net with BatchNorm, such as cnn-b"
                )
            if len(shard.test) < 2:
                raise UserError(
                    f"unseen={self.unseen!r}: client {i} has {len(shard.test)} test images, and needs at "
                    "least 2 to be adapted to: use fewer clients"
                )

    def _remainder(self, samples: int) -> int:
        """Return the size of a client's last batch, 0 where it is full or left out."""
        dropped = self.training.last_batch == "drop" and samples > self.training.batch_size
        return 0 if dropped else samples % self.training.batch_size

    def _folder(self) -> Path:
        if self.output is None:
            name = f"{datetime.now():%Y%m%d-%H%M%S}-{type(self.method).__name__}"
            path, number = Path("runs", name), 1
            while path.exists():
                number += 1
                path = Path("runs", f"{name}-{number}")
            return path
        return Path(self.output)

    def _open(self, path: Path, start: int, data: FederatedData) -> RunFolder:
        config = dump(self)
        if self._resumes:
            folder = RunFolder.resume(path, start, config, self.tensorboard)
        else:
            folder = RunFolder.create(path, config, self.tensorboard)
        folder.write_partition(data.describe())
        return folder

    def _manifest(self, path: Path, data: FederatedData) -> Manifest | None:
        """Return the checkpoint to go on with; None where the run has to start again."""
        check_same_data(path, data.describe())
        manifest = self._newest(path, data)
        done = manifest.round if manifest else sum(1 for _ in read_lines(path / METRICS))
        if done > self.rounds:
            raise UserError(
                f"{path} has completed {done} rounds, more than rounds={self.rounds}: give a larger --rounds"
            )
        if manifest is None and done:
            _warn(f"{path} has no checkpoint: its {done} rounds are run again")
        return manifest

    def _newest(self, path: Path, data: FederatedData) -> Manifest | None:
        """Return the newest checkpoint that is intact, None where none has been written.

        Raises:
            UserError: it is of another run.
        """
        checkpoints = Checkpoints(path / "checkpoints")
        manifest, damage = checkpoints.newest()
        for text in damage:
            _warn(f"{text}; going back to the checkpoint before it")
        if manifest is not None:
            checkpoints.check_settings(manifest, self.deciding(data))
        return manifest

    def _print_start(self, path: Path, start: int, data: FederatedData) -> None:
        sampled = len(self.cohort(0, data.seen))
        facts = {
            "method": type(self.method).__name__,
            "data": f"{type(self.data).__name__}, {type(self.data.partition).__name__}",
            "net": self.net if isinstance(self.net, str) else ", ".join(self.net),
            "clients": f"{self.clients}, {sampled} in a round"
            + (f", {data.unseen} unseen ({self.unseen})" if data.unseen else ""),
            "rounds": str(self.rounds) + (f", from {start + 1} on" if start else ""),
            "engine": self.engine.describe(),
            "protocol": self.protocol,
            "run folder": str(path),
        }
        print_start(facts)
        tell(data.table())

    # ---- what is scored when

    @property
    def _scores_untrained(self) -> bool:
        partial = self.participation < 1
        after_training = self._protocol.point == "after_training" and not self._protocol.trained_only
        return partial and after_training and self.eval_every > 0

    def _scores_training(self, evaluates: bool) -> bool:
        """Say whether clients are scored right after training: their models are not kept to do it later."""
        wanted = self._protocol.point == "after_training" and self.eval_every > 0
        return wanted and (evaluates or self.participation < 1)


def _loss(session: Session, error: Exception) -> Gone | Lost:
    """Return what has been lost, cleared up so that the run can be restored; raise what is no loss."""
    if isinstance(error, Gone):
        return error
    try:
        session.check()
        if isinstance(error, Lost):
            session.clear(error)
            return error
    except Gone as gone:
        return gone
    raise error


class EarlyEnd:
    """Whether the protocol's patience has run out: a matter of the records alone, so that a resumed run ends
    where one that was never stopped does.

    Args:
        folder: of the run, with the rounds that are done.
        protocol: its protocol.
    """

    def __init__(self, folder: RunFolder, protocol: Protocol) -> None:
        self.reached = False
        self._patience = Patience(protocol.patience)
        self._validation: Validation | None = None
        if protocol.patience:
            self._validation = Validation(folder.population, protocol)
            for record in folder.records():
                self.after(record)

    def after(self, record: Mapping[str, Any]) -> bool:
        """Take in a round, and say whether it is the last."""
        if self._validation is not None:
            self.reached = self._patience.ends(record["round"], self._validation.accuracy(record))
        return self.reached


class Standing:
    """The scores of all clients as they stand: after aggregation now, after training from when they trained.

    Attributes:
        clients: who is scored: all that train, which those without training samples do not.
        parts: of the data on which they are scored.

    Args:
        data: says which clients have which parts.
        progress: what a checkpoint has kept of an earlier process.
    """

    def __init__(self, data: FederatedData, progress: Mapping[str, Any]) -> None:
        self._population = len(data)
        self.clients = [i for i, shard in enumerate(data.shards[: data.seen]) if len(shard.train)]
        has_val = any(len(s.val) for s in data.shards)
        self.parts: tuple[str, ...] = ("val", "test") if has_val else ("test",)
        self._trained: dict[str, Any] = progress.get("after_training", {})

    def before_first_round(self, round: int, session: Session, wanted: bool) -> None:
        """Score the initial model of every client, where unsampled clients will count by it."""
        if wanted and round == 0:
            self._keep(session.evaluate(round, self.clients, self.parts))

    def after_training(self, report: Report) -> None:
        """Keep the scores of the clients that were just trained."""
        self._keep(report.scores)

    def evaluation(self, current: dict[int, Scores], point: str) -> dict[str, Any]:
        """Return the ``evaluation`` of a metrics line."""
        columns: dict[str, Any] = {}
        self._fill(columns, current)
        found = {"after_aggregation": columns}
        if point == "after_training":
            found["after_training"] = {
                view: {part: {k: list(v) for k, v in column.items()} for part, column in parts.items()}
                for view, parts in self._trained.items()
            }
        return found

    def unseen(self, found: Mapping[str, dict[int, Scores]]) -> dict[str, Any]:
        """Return what clients that never train add to the ``evaluation``: a point for each way to score."""
        points: dict[str, Any] = {point: {} for point in found}
        for point, scores in found.items():
            self._fill(points[point], scores)
        return points

    def progress(self) -> dict[str, Any]:
        """Return what a checkpoint has to keep."""
        return {"after_training": self._trained} if self._trained else {}

    def _keep(self, scores: dict[int, Scores]) -> None:
        personal = {
            i: {part: {v: s for v, s in views.items() if v != "global"} for part, views in parts.items()}
            for i, parts in scores.items()
        }  # one client's trained copy is not the global model
        self._fill(self._trained, personal)

    def _fill(self, columns: dict[str, Any], scores: dict[int, Scores]) -> None:
        for client, parts in scores.items():
            for part, views in parts.items():
                for view, one in views.items():
                    empty = {"correct": [None] * self._population, "loss": [None] * self._population}
                    column = columns.setdefault(view, {}).setdefault(part, empty)
                    column["correct"][client] = one.correct
                    column["loss"][client] = one.loss


def _record(round: int, report: Report, data: FederatedData) -> dict[str, Any]:
    """Return the metrics line of a round, without its evaluation."""
    return {
        "round": round,
        "cohort": report.ids,
        "samples": [len(data.shards[i].train) for i in report.ids],
        "loss": report.loss,
        "steps": report.steps,
        "dropped": sorted(report.bad),
        "up": report.up,
        "down": report.down,
    }


def _dropped_text(round: int, bad: dict[int, str]) -> str:
    first, *others = sorted(bad)
    more = f", and {len(others)} more clients" if others else ""
    return f"round {round}: the update of client {first} is dropped: {bad[first]}{more}"


def _going_on(manifest: Manifest | None) -> str:
    where = f"the checkpoint after {manifest.round} rounds" if manifest else "the start"
    return f"going on from {where}"


def _warn(text: str) -> None:
    complain(f"warning: {text}")


@contextmanager
def _asked_to_stop() -> Iterator[threading.Event]:
    """Turn the first SIGINT, SIGTERM or SIGHUP into an event; a second one acts as usual."""
    asked = threading.Event()

    def stop(number: int) -> None:
        asked.set()
        give_back()
        print("Stopping after this round, with a checkpoint; once more to stop at once.", flush=True)

    with answered(stop) as give_back:
        yield asked
