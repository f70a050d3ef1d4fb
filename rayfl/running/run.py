"""A run, from its settings to its result: resolve, check, start, restore, rounds, finish."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from rayfl.callbacks.callback import Callback, EarlyStopping, Run
from rayfl.callbacks.loggers import LOGGERS
from rayfl.callbacks.page import LivePage
from rayfl.callbacks.terminal import LogRounds, Progress, print_start
from rayfl.data import FederatedData
from rayfl.engine.base import ClusterLost, Engine
from rayfl.engine.inline import stack_difference
from rayfl.engine.models import Models
from rayfl.engine.process import federation_lock, torch_defaults
from rayfl.engine.session import Session
from rayfl.engine.travel import RoundResult
from rayfl.errors import BadValue, Shortage
from rayfl.evaluation.latest import LatestScores
from rayfl.evaluation.measures import or_none
from rayfl.evaluation.metrics import Validation, client_figures
from rayfl.methods.base import has_exchange
from rayfl.randomness import generator
from rayfl.record.checkpoint import Checkpoints, Manifest
from rayfl.record.folder import RunFolder, check_is, check_stays, check_unused, read_config
from rayfl.record.history import CONFIG, LOG, read_records
from rayfl.report.page import PAGE, write_page
from rayfl.report.run_page import run_page
from rayfl.report.summary import final_table
from rayfl.report.text import range_text
from rayfl.running.checks import check_names
from rayfl.running.recovery import (
    check_device,
    checkpoint_to_resume,
    disk_full_as_error,
    finished_result,
    handle_loss,
    newest_checkpoint,
    restore_session,
    warn_of_loss,
)
from rayfl.running.result import Result, finish_records
from rayfl.running.settings import RunSettings
from rayfl.sampling import Bernoulli, takes_all
from rayfl.settings.description import config_of, display_name, dump_config, flatten_config, public_path
from rayfl.system.files import explain_write_errors, lock_folder
from rayfl.system.log import RunLog, log, warnings_shown
from rayfl.system.own_code import FROZEN, code_digests, own_modules
from rayfl.system.signals import asked_to_stop
from rayfl.system.text import counted, one_line, print_note, short_repr, warn

LOOKED_AT = 20
"""Rounds whose numbers of clients are looked at for the start's text."""


@dataclass(frozen=True)
class FederationRun:
    """A run of a federation: a new one, or one that goes on where its last checkpoint is.

    Attributes:
        settings: as they were given.
        resumes: whether to resume the run in ``settings.output``.
        any_code: whether it may go on with other code.
        in_group: whether actors go into the placement group of this process, as those of a trial do.
    """

    settings: RunSettings
    resumes: bool = False
    any_code: bool = False
    in_group: bool = False

    def run(self, callbacks: Sequence[Callback] = ()) -> Result:
        """Run all rounds, or those that are left of a resumed run; return the records.

        A SIGINT, SIGTERM or SIGHUP ends the run after the round in progress, with a checkpoint. After a
        SIGTERM or SIGHUP the result has ``complete`` false.

        Args:
            callbacks: callbacks of every round; a resumed run needs them again.

        Raises:
            KeyboardInterrupt: a SIGINT has ended the run, and is to end what comes after it, too.
            UserError: the settings are impossible, data are missing, the run folder is in use, or another
                thread of this process runs a federation; raised before any actor is started. Or: an update is
                bad and the policy is to stop.
        """
        settings = self.settings
        if settings.output == "":  # as from a shell's variable that is not set; a path would be this folder
            raise BadValue("output", "is empty", "give a folder, or leave it out")
        with ExitStack() as contexts:
            for each in (federation_lock(), torch_defaults(), warnings_shown()):
                contexts.enter_context(each)
            run_log = contexts.enter_context(RunLog(settings.log_level))
            path = Path(settings.output or contexts.enter_context(_new_folder(settings))).expanduser()
            contexts.enter_context(disk_full_as_error(path))
            if self.resumes:
                check_stays(path)
                check_is(path, "run", CONFIG)
                contexts.enter_context(lock_folder(path))
                if over := finished_result(path, settings.rounds):
                    _show_result(over, settings.quiet)
                    return over
            else:
                check_unused(path)
            return self._run(path, callbacks, run_log, contexts)

    def _run(self, path: Path, callbacks: Sequence[Callback], run_log: RunLog, contexts: ExitStack) -> Result:
        given, imported = self.settings.engine, own_modules()
        settings = replace(self.settings, engine=given.resolve())
        if self.resumes and given.device == "auto":
            check_device(path, settings.engine.device)
        for each in callbacks:
            check_names(type(each))
        name = one_line("/".join(path.absolute().parts[-2:]))
        # As given: it warns of an unused GPU unless the user has asked for the CPU.
        with given.start_in_background(name, quiet=settings.quiet, in_group=self.in_group) as started:
            data = settings.federated_data()
            settings = replace(settings, clients=len(data)).with_noise(data.seen)
            warnings, frozen = settings.check(data)
            for warning in warnings:
                warn(warning)
            if not (self.resumes and flatten_config(read_config(path)).get("engine.execution") == "stacked"):
                settings = _loop_where_stacks_differ(settings, given, data)
            cohort = partial(settings.recorded_cohort, samples=data.sizes)
            size = settings.cohort_size(data.sizes)
            settings = replace(settings, engine=settings.engine.with_stack(size, len(data)))
            plan = replace(settings.plan(), frozen=frozen)
            groups = len(settings.engine.groups(range(size)))
            code = settings.code() | ({FROZEN: frozen} if frozen else {})
            result_settings = settings.result_settings(data) | {"code": code}
            manifest = None
            if self.resumes:
                manifest = checkpoint_to_resume(path, settings.rounds, result_settings, cohort, self.any_code)
            _report_start(settings, path, manifest.round if manifest else 0, data)
        data = started.share_data(data, settings.own_code())
        workers = started.make_workers(plan, data, groups)
        with Session(plan, data, workers) as session, asked_to_stop(lambda: workers.hangs) as asked:
            manifest = restore_session(session, path, manifest, result_settings, cohort)
            # Nothing is written before this line: a run that cannot go on stays as it is.
            if not self.resumes:
                with explain_write_errors(path):
                    path.mkdir(parents=True, exist_ok=True)
                contexts.enter_context(lock_folder(path))
            folder = self._open_folder(settings, path, manifest, data, result_settings["code"], callbacks)
            with explain_write_errors(path / LOG, "remove it, and resume the run"):
                run_log.open(path / LOG)
            looking = [*started.round_callbacks(), *callbacks]
            with Rounds(settings, session, folder, result_settings, asked, looking) as rounds:
                stopped = rounds.run_with_recovery(manifest)
            if not plan.digests().items() <= code.items():
                warn("files of the net were changed while the run went on: its numbers may be of both")
            late = session.late_code() | (code_digests(new) if (new := own_modules() - imported) else {})
            if unseen := {name: late[name] for name in late.keys() - result_settings["code"].keys()}:
                warn(
                    f"the run has imported code of your own that no import statement shows "
                    f"({', '.join(sorted(unseen))}): should it change, a resumed run does not notice"
                )
                folder.add_code(unseen)
        result = finish_records(folder) if stopped is None else Result.load(path)
        write_page(path, lambda: run_page(result))
        if stopped is None:
            _show_result(result, settings.quiet)
        else:
            stop = f"Stopped before round {stopped + 1} of {settings.rounds}; go on with --resume {path}"
            _log_and_print(stop, settings.quiet)
        if asked.interrupted:
            raise KeyboardInterrupt
        return result

    def _open_folder(
        self,
        settings: RunSettings,
        path: Path,
        manifest: Manifest | None,
        data: FederatedData,
        code: Mapping[str, str],
        callbacks: Sequence[Callback],
    ) -> RunFolder:
        config = dump_config(settings)
        called = code_digests(f"{type(each).__module__}.{type(each).__qualname__}" for each in callbacks)
        digests = {"code": code, "callbacks": called}
        if not self.resumes:
            folder = RunFolder.create(path, config, **digests)
        else:
            folder = RunFolder.resume(path, manifest.round if manifest else 0, config, **digests)
            if settings.protocol.choose not in ("last_k", "window"):  # which count rounds from the end
                folder.keep_evaluations(settings.evaluates)
        by_val = settings.method.facts.validation != "unused" and bool(data.counts("val").any())
        attack = settings.attack
        attackers = {"attackers": sorted(attack.attackers(settings.seed, data.seen))} if attack else {}
        folder.write_partition(data.describe() | ({"trains_on_val": True} if by_val else {}) | attackers)
        return folder


def _loop_where_stacks_differ(settings: RunSettings, given: Engine, data: FederatedData) -> RunSettings:
    """Change to the loop, with a warning, if a stack would train clients differently."""
    engine = settings.engine
    if engine.execution != "stacked" or not (why := stack_difference(settings.plan(), data)):
        return settings
    warn(
        "engine.execution is stacked, and a stack would not train clients as a loop does "
        f"({why}): the run goes on with engine.execution=loop"
    )
    loop = replace(engine, execution="loop", memory_format=given.memory_format)
    return replace(settings, engine=loop.resolve())


@contextmanager
def _new_folder(settings: RunSettings) -> Iterator[Path]:
    """Make a new folder for this run; others may start in the same second."""
    name = f"{datetime.now():%Y%m%d-%H%M%S}-{type(settings.method).__name__}"
    for number in count(1):
        path = Path("runs", name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):
            path.mkdir(parents=True)
            break
    try:
        yield path
    finally:
        with suppress(OSError):  # a run that has begun leaves files there
            path.rmdir()
            path.parent.rmdir()


def _report_start(settings: RunSettings, path: Path, start: int, data: FederatedData) -> None:
    facts = {
        "method": display_name(public_path(type(settings.method))),
        "data": f"{type(settings.data).__name__}, {type(settings.data.partition).__name__}",
        "net": ", ".join(map(str, settings.plan().nets)),
        "clients": f"{settings.clients}, {_cohort_text(settings, data)} in a round"
        + (" on average" if isinstance(settings.sampling, Bernoulli) else "")
        + (f", {data.unseen} unseen ({settings.unseen or 'drawn'})" if data.unseen else ""),
        "rounds": str(settings.rounds) + (f", from {start + 1} on" if start else ""),
        "engine": settings.engine.describe(),
        **({"local work": text} if (text := _local_work(settings)) else {}),
        **({"fine-tuning": _cost_of_finetuning(settings, start, data)} if settings.finetune.epochs else {}),
        **({"common test": _cost_of_common_test(settings, start, data)} if settings.common_test else {}),
        "protocol": str(settings.protocol),
        "run folder": str(path),
    }
    for name, text in facts.items():
        log.info("%s: %s", name, one_line(text))
    for remark in data.remarks:
        log.info("%s", one_line(remark))
    if not settings.quiet:
        print_start(facts)
        print_note(data.table())


def _cohort_text(settings: RunSettings, data: FederatedData) -> str:
    """Return how many clients train in a round, by the first rounds, which may differ."""
    if isinstance(settings.sampling, Bernoulli):
        return str(settings.cohort_size(data.sizes))
    return range_text(len(settings.cohort(r, data.sizes)) for r in range(min(settings.rounds, LOOKED_AT)))


def _local_work(settings: RunSettings) -> str:
    """Return how the work of clients differs, and which fits keep their epochs; empty where it does not."""
    training = settings.training
    unit = "training.epochs" if training.steps is None else "training.steps"
    if training.work_range is not None:
        low, high = training.work_range
        text = f"{low:g} to {high:g} times {unit}, drawn for each client and round"
    elif training.work is not None:
        text = f"{unit} times {short_repr(list(training.work))}, client by client"
    else:
        return ""
    options = flatten_config(config_of(settings)).items()
    set_apart = [name for name, value in options if value and name.endswith("_epochs")]
    set_apart += ["finetune.epochs"] if settings.finetune.epochs else []
    return text + (f"; unchanged: {', '.join(set_apart)}" if set_apart else "")


def _cost_of_finetuning(settings: RunSettings, start: int, data: FederatedData) -> str:
    """Return how much is trained for the remaining evaluations."""
    scored = settings.scored_count(int(np.count_nonzero(data.sizes)))
    clients = counted(scored + int(np.count_nonzero(data.counts("train")[data.seen :])), "client")
    each = f"in each of {_evaluations_left(settings, start)}"
    return f"{counted(settings.finetune.epochs, 'epoch')} of {clients} {each}"


def _cost_of_common_test(settings: RunSettings, start: int, data: FederatedData) -> str:
    """Return how much is scored on the common test set in the remaining evaluations."""
    clients, size = settings.scored_count(int(np.count_nonzero(data.sizes))) + data.unseen, len(data.common)
    return (
        f"{counted(clients, 'client')} x {size:,} samples = {clients * size:,} forward passes, for each view "
        f"and point, in each of {_evaluations_left(settings, start)}"
    )


def _evaluations_left(settings: RunSettings, start: int) -> str:
    return counted(sum(map(settings.evaluates, range(start, settings.rounds))), "evaluation")


def _show_result(result: Result, quiet: bool) -> None:
    if not quiet:
        final_table(result.summary)
        print_note(f"The run is in {result.folder}, and its page is {result.folder / PAGE}.")
    headline, kept = result.summary["headline"], Checkpoints(result.folder / "checkpoints").rounds
    if headline and headline["choose"] == "best_val" and headline["rounds"][0] + 1 not in kept:
        after = f"those after rounds {' and '.join(map(str, kept))}" if kept else "none"
        best = headline["rounds"][0] + 1
        gone = f"The models of round {best} are gone. Checkpoints: {after}; checkpoint_keep=best keeps them."
        _log_and_print(gone, quiet)


def _log_and_print(text: str, quiet: bool) -> None:
    log.info("%s", text)
    if not quiet:
        print_note(text)


class Rounds(Run):
    """The rounds of a run, and the way back to a checkpoint; use it as a context manager.

    Attributes:
        settings: of the run, without ``auto``.
        session: the processes that hold the clients and the server.
        folder: where the records go.
        result_settings: the settings that decide the numbers; checkpoints hold them.
        asked: set when a signal has asked the run to stop.
        cohort: round -> its clients.
        recorded_cohort: round -> those of them that records name.
        callbacks: callbacks of every round.
    """

    def __init__(
        self,
        settings: RunSettings,
        session: Session,
        folder: RunFolder,
        result_settings: dict[str, Any],
        asked: threading.Event,
        callbacks: Sequence[Callback],
    ) -> None:
        self.settings, self.session, self.folder = settings, session, folder
        self.result_settings, self.asked = result_settings, asked
        self.path, self.population = folder.path, folder.population
        self._evaluated: Mapping[str, Any] | None = None  # the last evaluation, once it is known
        self.rounds, self.protocol = settings.rounds, settings.protocol
        self.cohort = partial(settings.cohort, samples=session.data.sizes)
        self.recorded_cohort = partial(settings.recorded_cohort, samples=session.data.sizes)
        self.callbacks: list[Callback] = [*([] if settings.quiet else [Progress()])]
        self.callbacks += [] if settings.log_level == "warning" else [LogRounds()]
        self.callbacks += [LOGGERS[name]() for name in settings.loggers]
        self.callbacks += [LivePage()]
        self.callbacks += [EarlyStopping()] if self.protocol.patience else []
        self.callbacks += callbacks

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        failed: Exception | None = None
        for callback in self.callbacks:
            try:
                callback.end()
            except Exception as error:  # the others must end as well
                failed = failed or error
        if failed and kind is None:
            raise failed

    def _warn_at_end(self) -> None:
        """Print what the method warns of at the end, and did not before the run."""
        ask = partial(self.settings.method.warning, self.settings.training, self.session.data)
        if (warning := ask(self.session.server_metrics())) and warning != ask({}):
            warn(warning)

    def run_with_recovery(self, manifest: Manifest | None) -> int | None:
        """Run the rounds that are left; where processes die, go back to the newest checkpoint and replay.

        Returns:
            None, or the round before which a signal has stopped the run.
        """
        while True:
            try:
                stopped = self._run_rounds(manifest)
                self.session.finish_pending()
                self._warn_at_end()
                return stopped
            except KeyboardInterrupt:
                done = max(Checkpoints(self.path / "checkpoints").rounds, default=0)
                kept = f"with the checkpoint after {counted(done, 'round')}" if done else "from the start"
                _log_and_print(f"Stopped at once; {kept} it goes on by --resume {self.path}", quiet=False)
                raise
            except Exception as error:  # it may be anything if the cluster is gone
                lost = handle_loss(self.session, error, self.folder)
                if isinstance(lost, ClusterLost) and not self.asked.is_set():
                    problem = f"{lost}. The run stops with its last checkpoint intact"
                    raise Shortage("", problem, f"go on with --resume {self.path}") from error
                manifest = newest_checkpoint(self.path, self.result_settings, self.recorded_cohort)
                start = manifest.round if manifest else 0
                self.folder.truncate(start)
                self.folder.append_engine({"lost": str(lost), "back_to": start})
                warn_of_loss(lost, manifest)
                if self.asked.is_set():
                    return start
                manifest = restore_session(
                    self.session, self.path, manifest, self.result_settings, self.recorded_cohort
                )

    def _run_rounds(self, manifest: Manifest | None) -> int | None:
        """Run the rounds after a checkpoint, or all of them.

        Returns:
            None, or the round before which a signal has stopped the run.
        """
        settings, session, data = self.settings, self.session, self.session.data
        start = manifest.round if manifest else 0
        self._saved = self._done = start
        self._evaluated = None
        self.latest = LatestScores(
            data, manifest.progress if manifest else {}, settings.eval_clients is not None
        )
        self._trained: set[int] = set()
        self._validation = Validation(self.population, self.protocol)
        keeps_best = settings.checkpoint_keep == "best"
        for record in self.records() if start else ():
            self._trained |= {*record["cohort"]} - {*record["dropped"]}
            if keeps_best:
                self._validation.is_best(record)
        over = [callback.start(self, start) for callback in self.callbacks]
        if any(over):
            return None
        began = time.perf_counter()
        for round in range(start, self.rounds):
            self._done = round + 1
            evaluates = settings.evaluates(round)
            if round == 0 and self._scores_untrained:
                everyone = self.latest.clients.tolist()
                self.latest.keep(session.evaluate(round, everyone, self.latest.splits, personalises=False))
            exchanged = self._exchange(round)
            result = session.train(
                round,
                settings.engine.groups(self.cohort(round)),
                settings.on_bad_update,
                self.latest.splits if self._scores_training(evaluates) else (),
            )
            trained = time.perf_counter()
            self.latest.keep(result.scores)
            record = self._round_record(round, result, exchanged, evaluates)
            line = self.folder.append_metrics(record)
            is_best = keeps_best and self._validation.is_best(line)
            began, before = time.perf_counter(), began
            times = {"seconds": began - before, "train_seconds": trained - before}
            self.engine = {"round": round, **times, **asdict(session.system_metrics)}
            self.folder.append_engine(self.engine)
            log.debug("round %d: %.3f s, of which training %.3f s", self._done, *times.values())
            over = [callback.after_round(self, line) for callback in self.callbacks]
            last = any(over) or round == self.rounds - 1
            every = settings.checkpoint_every
            at_end = every or start  # a run that has gone on from a checkpoint would do so again
            due = is_best or (every and self._done % every == 0) or session.workers.hosts_leave()
            if due or (at_end if last else self.asked.is_set()):
                self.save()
            if last:
                return None
            if self.asked.is_set():
                return self._done
        return None

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the metrics lines of all rounds that are over."""
        return read_records(self.folder.path)

    def save(self) -> None:
        """Write a checkpoint of the round that is over, if there is none yet."""
        if self._saved < self._done:
            self.folder.sync()
            where, progress = self.path / "checkpoints", self.latest.progress()
            self.session.save(where, self._done, progress, self.result_settings, self._validation.best)
            self._saved = self._done
            log.debug("checkpoint after %d rounds", self._done)

    def figures(self, split: str = "test") -> dict[int, float]:
        """Return client -> figure of the last evaluation, of the view that the protocol reports."""
        if self._evaluated is None:
            self._evaluated = {}
            for record in self.records():  # of an earlier process
                self._evaluated = record if "evaluation" in record else self._evaluated
        return client_figures(self._evaluated, self.population, self.protocol, split)

    def models(self) -> Models:
        """Return the models of all clients as they are now."""
        return self.session.models(self._done, self._trained)

    def _exchange(self, round: int) -> RoundResult | None:
        """Let clients upload before the round's training, where the method asks for it."""
        method, data = self.settings.method, self.session.data
        if not has_exchange(method, round):
            return None
        sampling, ids = self.settings.sampling, self.cohort(round)
        if method.facts.before == "once" and not sampling.draws_once:
            trained = np.flatnonzero(data.sizes[: data.seen]).tolist()
            ids = sorted({*trained} - {*sampling.unlisted(data.seen)})
        if not ids:
            return None
        return self.session.exchange(round, self.settings.engine.groups(ids), self.settings.on_bad_update)

    def _round_record(
        self, round: int, result: RoundResult, exchanged: RoundResult | None, evaluates: bool
    ) -> dict[str, Any]:
        """Return the metrics line of a round, with an evaluation if one is due."""
        data = self.session.data
        record: dict[str, Any] = {
            "round": round,
            "cohort": result.ids,
            "samples": data.counts("train")[result.ids].tolist(),
            "loss": [None if loss is None else or_none(loss) for loss in result.loss],
            "steps": result.steps,
            "dropped": sorted(result.bad),
            "up": result.up,
            "down": result.down,
        }
        if exchanged:
            cohort = {*result.ids}  # to whom the download goes once, with what the exchange has added
            down = {
                key: [0 if i in cohort else n for i, n in zip(exchanged.ids, sizes, strict=True)]
                for key, sizes in exchanged.down.items()
            }
            dropped, up = sorted(exchanged.bad), exchanged.up
            record["before_round"] = {"clients": exchanged.ids, "dropped": dropped, "up": up, "down": down}
            if exchanged.bad:
                warn(_dropped_text(round, exchanged.bad))
        self._trained |= set(result.ids) - result.bad.keys()
        if evaluates:
            scored = self._scored_clients(round)
            untrained = sorted(set(scored) - self._trained)
            groups = self.settings.engine.groups(scored) if self.settings.finetune.epochs else ()
            current = self.session.evaluate(round, scored, self.latest.splits, untrained, groups)
            if untrained:
                unlisted = sorted(self.settings.sampling.unlisted(data.seen) & set(untrained))
                by = self.session.plan.counts_by
                record["untrained"] = {"clients": untrained, "view": by, "unlisted": unlisted}
            record["evaluation"] = self.latest.evaluation(current, self._after_training)
            if data.unseen:
                record["evaluation"] |= self.latest.points(self.session.unseen(round))
            self._evaluated = record
        metrics = dict(self.session.server_metrics())
        if given := self.settings.guarantee(data.seen, round + 1):
            epsilon, record["privacy"] = given
            metrics |= {} if epsilon is None else {"epsilon": epsilon}
        if metrics:
            record["figures"] = {
                name: list(map(or_none, found)) if isinstance(found, list) else or_none(found)
                for name, found in metrics.items()
            }
        if result.bad:
            warn(_dropped_text(round, result.bad))
        return record

    def _scored_clients(self, round: int) -> list[int]:
        """Return the clients that an evaluation scores, ascending."""
        settings, clients = self.settings, self.latest.clients
        if settings.eval_clients is None:
            return list(clients.tolist())
        size = settings.scored_count(len(clients))
        counters = () if settings.eval_draw == "once" else (round,)
        order = torch.randperm(len(clients), generator=generator(settings.seed, "scored clients", *counters))
        return sorted(clients[order[:size].numpy()].tolist())

    @property
    def _after_training(self) -> bool:
        settings = self.settings
        asked = settings.eval_points == "both" or self.protocol.point == "after_training"
        return asked and settings.eval_every > 0

    @property
    def _some_skip_rounds(self) -> bool:
        """Whether there may be rounds in which a client does not train, or its update is left out."""
        settings = self.settings
        everyone = takes_all(settings.sampling, settings.participation)
        return not everyone or settings.on_bad_update == "drop"

    @property
    def _scores_untrained(self) -> bool:
        """Whether clients count by their initial model until they are sampled."""
        return self._after_training and self._some_skip_rounds and not self.protocol.trained_only

    def _scores_training(self, evaluates: bool) -> bool:
        """Return whether clients are scored right after training: their models are not kept for later."""
        return self._after_training and (evaluates or self._some_skip_rounds)


def _dropped_text(round: int, bad: dict[int, str]) -> str:
    first, *others = sorted(bad)
    more = f", and {len(others)} more clients" if others else ""
    return f"round {round}: the update of client {first} is dropped: {bad[first]}{more}"
