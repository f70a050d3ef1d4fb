"""A federation: a method, data split over clients, a number of rounds; and the loop that runs it."""

import json
import math
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch

from rayfl import checks
from rayfl.arguments import changed, shown
from rayfl.callbacks.callback import Callback, Run
from rayfl.callbacks.early_stopping import EarlyStopping
from rayfl.callbacks.loggers import LOGGERS, Name, check_loggers
from rayfl.callbacks.page import LivePage
from rayfl.callbacks.terminal import LogRounds, Progress, print_start
from rayfl.config.reader import flattened, read
from rayfl.data import Data, EmbeddedDigits, FederatedData
from rayfl.display import Displayed, options
from rayfl.engine.base import Engine, Plan
from rayfl.engine.inline import stack_differs
from rayfl.engine.models import Models
from rayfl.engine.process import alone, torch_defaults
from rayfl.engine.ray_engine import Ray
from rayfl.engine.round_result import RoundResult
from rayfl.engine.session import Session
from rayfl.errors import BadCode, BadValue, Conflict, UserError
from rayfl.evaluation.finetune import NO_FINETUNING, Finetune
from rayfl.evaluation.latest import LatestScores
from rayfl.evaluation.measures import recorded
from rayfl.evaluation.metrics import client_accuracies
from rayfl.evaluation.protocol import PROTOCOLS, Default, Protocol
from rayfl.evaluation.result import Result, finish, read_config
from rayfl.files import held, writing
from rayfl.log import Level, RunLog, log, warnings_shown
from rayfl.methods import FedBN, Method
from rayfl.nets import CNNB, Architecture
from rayfl.own_code import digests
from rayfl.randomness import generator
from rayfl.record.cell import Cell
from rayfl.record.checkpoint import Checkpoints, Manifest
from rayfl.record.description import config_of, deciding, differing, display_name, dump, flat, public_path
from rayfl.record.folder import RunFolder, check_is, check_stays, check_unused
from rayfl.record.history import CONFIG, LOG
from rayfl.recovery import carry_out, check_device, finished, needing_room, restored, to_resume
from rayfl.report.page import PAGE, write_page
from rayfl.report.run_page import run_page
from rayfl.report.summary import final_table
from rayfl.sampling import Sampling, Uniform, cohort, takes_all
from rayfl.settings import above, at_least, at_most
from rayfl.shown import counted, one_line, tell, warn
from rayfl.signals import asked_to_stop
from rayfl.streams import lasting_output
from rayfl.training import Training
from rayfl.yaml_file import parse_yaml

# Defaults may be shared: a run works on copies, and none of its steps changes them.
DEFAULT_METHOD, DEFAULT_DATA, DEFAULT_TRAINING, DEFAULT_ENGINE = FedBN(), EmbeddedDigits(), Training(), Ray()
MANY = 1_000
"""More clients than so many are scored together, where nothing else is said."""
DEFAULT_NET, DEFAULT_PROTOCOL, DEFAULT_SAMPLING = CNNB(), Default(), Uniform()


@dataclass(kw_only=True, eq=False, repr=False)
class Federation(Displayed):
    """One experiment, ready to run."""

    method: Method = DEFAULT_METHOD
    """What clients compute, what they send, and how the server combines it."""
    data: Data = DEFAULT_DATA
    """The data set and how it is divided."""
    net: Architecture | str | list[Architecture | str] = DEFAULT_NET
    """The net, or the import path of a class or function that makes a ``torch.nn.Module``. A list gives
    clients different nets: client k gets entry k modulo the length of the list. This is for methods that do
    not average whole nets.
    """
    clients: Annotated[int, at_least(1)] | None = None
    """Number of clients; by default one for every user where the partition goes by users, else 5."""
    unseen: str | None = None
    """A domain whose clients never train. They are scored as new clients, and again after adapting to their
    samples if the method can do that.
    """
    participation: Annotated[float, above(0), at_most(1)] = 1.0
    """Share of the clients sampled in a round."""
    sampling: Sampling = DEFAULT_SAMPLING
    """Who is sampled: ``Uniform``, ``BySize``, ``Cyclic``, ``Trace`` or a class of one's own."""
    rounds: Annotated[int, at_least(1)] = 20
    """Number of rounds."""
    training: Training = DEFAULT_TRAINING
    """How clients train."""
    engine: Engine = DEFAULT_ENGINE
    """Where clients run: ``Ray`` or ``Inline``."""
    averaging: Literal["samples", "uniform"] | None = None
    """How means over clients are weighted: by ``samples`` or ``uniform``. By default the method decides. It
    changes nothing where a method has no such mean: DCPFL, FD, FedDGGA, FedGH, FedHEAL, FedProto and Local.
    """
    eval_every: Annotated[int, at_least(0), "0: never"] = 1
    """Rounds between two evaluations."""
    eval_clients: Annotated[float, above(0)] | None = None
    """How many clients an evaluation scores: a share of them if below 1, this number if 1 or more, all if
    not given.
    """
    eval_draw: Literal["once", "anew"] = "once"
    """``once``: all evaluations score the same ``eval_clients``; ``anew``: each one draws them again."""
    eval_points: Literal["protocol", "both"] = "protocol"
    """``both``: every evaluation also has scores right after training, whatever the protocol's point. That
    scores each client of a cohort once more: in every round, if only some of the clients are sampled.
    """
    scoring: Literal["auto", "each", "together"] = "auto"
    """``together`` scores samples of many clients in one call, if the method has one model, or one
    extractor, for all clients; ``each`` scores client after client. Losses differ in the last bits. ``auto``
    is together for more than 1,000 clients.
    """
    finetune: Finetune = NO_FINETUNING
    """How clients train on their own data before they are scored; what they learn is thrown away."""
    protocol: Protocol = DEFAULT_PROTOCOL
    """The rule that says which model is scored, when, and which number is the reported metric."""
    metrics: list[str] = field(default_factory=list)
    """Further metrics of each client's scores, which are recorded beside accuracy and loss: ``f1`` (macro),
    ``auroc``, ``calibration_error``, import paths of torchmetrics, or of functions of scores [n, classes] and
    labels [n].
    """
    checkpoint_every: Annotated[int, at_least(0), "0: none"] = 10
    """Rounds between two checkpoints; one is also written at the end."""
    on_bad_update: Literal["stop", "drop"] = "stop"
    """What happens if an update has NaN or infinity, or if a client raises an exception: ``stop`` the run, or
    ``drop`` the client's update of this round. An exception that does not come again when the update is
    repeated always stops the run.
    """
    seed: Annotated[int, at_least(-(2**53)), at_most(2**53)] = 0
    """The seed of all random numbers."""
    output: str | None = None
    """The run folder; by default a new ``runs/<time>-<method>``."""
    loggers: list[Name] = field(default_factory=lambda: ["tensorboard"])
    """Where the numbers of every round are also written, besides the run's own records; ``[]``: nowhere."""
    quiet: bool = False
    """Print nothing but warnings."""
    log_level: Level = "info"
    """What ``run.log`` in the run folder has: ``warning``: warnings alone; ``info``: also every round;
    ``debug``: also times and checkpoints.
    """
    cell: Cell | None = None
    """The cell of a table of experiments that this run is, if it is one; reports use it."""

    def __post_init__(self) -> None:
        if type(self) is not Federation:
            told = "config.yaml records only its options, and a resumed run would go on without your changes"
            remedy = "Make a Federation, and put what is yours into a method, a data set or a partition"
            raise BadCode(type(self).__name__, f"is derived from Federation: {told}. {remedy}")
        config_of(self)  # refuses values of other types, or out of their bounds
        if self.net == []:
            raise BadValue("net", "is []: it must be a net, or a list of at least one")
        if type(self.protocol) not in PROTOCOLS.values():
            told = f"is a {type(self.protocol).__name__}: it must be one of {', '.join(PROTOCOLS)}"
            raise BadValue("protocol", f"{told}, with options as you like, because reports know no others")
        self.clients = None if self.clients is None else int(self.clients)  # which may be NumPy's
        self.rounds, self.seed = int(self.rounds), int(self.seed)
        self.resumes = self.any_code = False
        self.in_group = False  # whether it is a trial, whose actors go into the trial's placement group
        self.callbacks: list[Callback] = []

    def _repr_line_(self) -> dict[str, Any]:
        always = ("method", "data", "clients", "rounds", "engine")
        told = {name: getattr(self, name) for name in always}
        return {name: value for name, value in told.items() if value is not None} | changed(self)

    def _repr_table_(self) -> dict[str, Any]:
        return options(self)

    # ---- running

    def run(self) -> Result:
        """Run all rounds, or those that are left of a resumed run; return the records.

        A SIGINT, SIGTERM or SIGHUP ends the run after the round in progress, with a checkpoint. After a
        SIGTERM or SIGHUP the result has ``complete`` false.

        Raises:
            KeyboardInterrupt: a SIGINT has ended the run, and is to end what comes after it, too.
            UserError: the settings are impossible, data are missing, the run folder is in use, or another
                thread of this process runs a federation; raised before any actor is started. Or: an update is
                bad and the policy is to stop.
        """
        with alone(), torch_defaults():
            return copy(self)._run()  # which settles what its settings leave open

    def _run(self) -> Result:
        if self.output == "":  # as from a shell's variable that is not set; a path would be this folder
            raise BadValue("output", "is empty: give a folder, or leave it out")
        with lasting_output(), warnings_shown(), RunLog(self.log_level) as run_log, ExitStack() as while_held:
            path = Path(self.output or while_held.enter_context(self._new_folder())).expanduser()
            while_held.enter_context(needing_room(path))
            if self.resumes:
                check_stays(path)
                check_is(path, "run", CONFIG)
                while_held.enter_context(held(path))
                if over := finished(path, self.rounds):
                    return self._shown(over)
            else:
                check_unused(path)
            self.engine = (given := self.engine).resolve()
            if self.resumes and given.device == "auto":
                check_device(path, self.engine.device)
            name = one_line("/".join(path.absolute().parts[-2:]))
            # As given: it tells of a GPU that stays unused only where nobody has asked for a CPU.
            with given.preparing(name, quiet=self.quiet, in_group=self.in_group) as started:
                data = self.federated_data()
                for warning in self.check(data):
                    warn(warning)
                if not (self.resumes and flat(read_config(path)).get("engine.execution") == "stacked"):
                    self._settle_execution(given, data)
                cohort = partial(self.cohort, samples=data.sizes)
                first = cohort(0)
                self.engine = self.engine.with_stack(len(first), len(data))
                plan, groups = self.plan(), len(self.engine.groups(first))
                code = self.own_code()
                settings = self.deciding(data) | {"code": code}
                manifest = None
                if self.resumes:
                    manifest = to_resume(path, self.rounds, settings, cohort, self.any_code)
                self._tell_start(path, manifest.round if manifest else 0, data)
            data = started.share(data, code)
            workers = started.workers(plan, data, groups)
            with Session(plan, data, workers) as session, asked_to_stop() as asked:
                manifest = restored(session, path, manifest, settings, cohort)
                # Nothing is written before this line: a run that cannot go on stays as it is.
                if not self.resumes:
                    with writing(path):
                        path.mkdir(parents=True, exist_ok=True)
                    while_held.enter_context(held(path))
                folder = self._open(path, manifest.round if manifest else 0, data, settings["code"])
                with writing(path / LOG, "remove it, and resume the run"):
                    run_log.open(path / LOG)
                with Rounds(self, session, folder, settings, asked, started.watchers()) as run:
                    stopped = carry_out(run, manifest)
            if stopped is None:
                result = self._shown(_with_page(finish(folder)))
            else:
                stop = f"Stopped before round {stopped + 1} of {self.rounds}; go on with --resume {path}"
                log.info("%s", stop)
                if not self.quiet:
                    tell(stop)
                result = _with_page(Result.load(path))
            if asked.interrupted:
                raise KeyboardInterrupt
            return result

    def resume(self, folder: str | Path, any_code: bool = False) -> Self:
        """Return this federation as one that goes on with the run in a folder, whose settings it has.

        Args:
            folder: the run folder.
            any_code: whether code of your own may be other than what the run has had so far.
        """
        going_on = copy(self)
        going_on.output, going_on.resumes, going_on.any_code = str(folder), True, any_code
        if self.clients is None and Path(folder, CONFIG).is_file():
            going_on.clients = read_config(Path(folder)).get("clients")
        return going_on

    def _shown(self, result: Result) -> Result:
        if not self.quiet:
            final_table(result.summary)
            tell(f"The run is in {result.folder}, and its page is {result.folder / PAGE}.")
        headline, kept = result.summary["headline"], Checkpoints(result.folder / "checkpoints").rounds
        if headline and headline["choose"] == "best_val" and headline["rounds"][0] + 1 not in kept:
            after = f"those after rounds {' and '.join(map(str, kept))}" if kept else "none"
            gone = f"The models of round {headline['rounds'][0] + 1} are gone. Checkpoints: {after}."
            log.info("%s", gone)
            if not self.quiet:
                tell(gone)
        return result

    def federated_data(self) -> FederatedData:
        """Return the data, divided among the clients; ``clients`` is their number from then on.

        Raises:
            UserError: they are missing, or cannot be divided like this.
        """
        data = self.data.federate(self.clients, self.seed)
        self.clients = len(data)
        return data if self.unseen is None else data.hold_out(self.unseen)

    def cohort(self, round: int, samples: Sequence[int] | None = None) -> list[int]:
        """Return the clients sampled in a round, ascending, at least one.

        Args:
            round: from 0.
            samples: how many training samples each client has that may train, the first ones; one each if
                not given.
        """
        if samples is None:
            samples = [1] * (self.clients or len(self.federated_data()))
        return cohort(self.sampling, round, samples, self.participation, self.seed)

    def deciding(self, data: FederatedData | None = None) -> dict[str, Any]:
        """Return everything that decides the run's numbers, by name; checkpoints carry it.

        Args:
            data: what ``federated_data`` returns; the settings alone if not given.
        """
        settings = deciding(config_of(self))
        if self.plan().goes_by_rounds:
            settings["rounds"] = self.rounds
        if not self.finetune.epochs:  # it decides nothing, and checkpoints of earlier versions lack it
            settings = {name: value for name, value in settings.items() if not name.startswith("finetune.")}
        if (trace := self.sampling.digest()) is not None:
            settings["trace"] = trace
        return settings | ({"division": data.digest()} if data else {})

    def own_code(self) -> dict[str, str]:
        """Return digests of the user's own code that decides the run's numbers; checkpoints carry them."""
        config = config_of(self) | {"engine": None}  # which decides no number
        classes = re.findall('"class_path": "(.*?)"', json.dumps(config, ensure_ascii=False))
        return digests([*classes, *self.plan().paths])

    # ---- before the run

    def plan(self) -> Plan:
        """Return what every process of the run has to know."""
        method = copy(self.method)
        if self.averaging is not None:
            method.averaging = self.averaging  # type: ignore[misc]  # of this one, not of its class
        return Plan(
            method=method,
            net=self.net,
            training=self.training,
            seed=self.seed,
            engine=self.engine,
            rounds=self.rounds,
            metrics=self.metrics,
            counts_by=method.fallback if self.protocol.untrained == "fallback" else "personal",
            together=self.scoring == "together" or (self.scoring == "auto" and (self.clients or 0) > MANY),
            finetune=self.finetune,
        )

    def check(self, data: FederatedData) -> list[str]:
        """Refuse what cannot work, before any process is started; return the warnings for the user.

        Args:
            data: what ``federated_data`` returns.

        Raises:
            UserError: method, net, data, training and protocol do not go together.
        """
        self._check_recorded()
        check_loggers(self.loggers)
        if self.eval_clients is not None and self.protocol.point != "after_aggregation":
            told = f"is {self.eval_clients:g}, which chooses who is scored after aggregation"
            other = f"the protocol reports {self.protocol.point}, when all are scored"
            remedy = "leave it out, or set protocol.point=after_aggregation"
            raise Conflict("eval_clients", f"{told}, and {other}: {remedy}")
        for each in (self.sampling, *self.callbacks):
            checks.check_names(type(each))
        self.sampling.check(data.seen, self.rounds)
        self.cohort(0, data.sizes)
        warnings = checks.check(self.plan(), self.protocol, data)
        if self.protocol.patience and not self.eval_every:
            warnings.append(
                f"protocol.patience is {self.protocol.patience}, and eval_every is 0: without evaluations "
                "no run ends early"
            )
        return warnings

    def _check_recorded(self) -> None:
        """Refuse what config.yaml would not give back: such a run could neither go on nor be repeated."""
        try:
            found = read(Federation, flattened(parse_yaml(dump(self))))
            one, other = config_of(self), config_of(found)
            if repr(one) != repr(other):
                name = [*differing(flat(one), flat(other)), *differing(one, other)][0]
                was, became = (shown(flat(each).get(name)) for each in (one, other))
                remedy = "give an object (CNNB(), not 'CNNB'), and let an __init__ keep what it is given"
                raise BadCode(name, f"is {was}, and {became} after it has been read: {remedy}")
        except UserError as error:
            raise error.within("config.yaml would not hold this federation") from error

    def _settle_execution(self, given: Engine, data: FederatedData) -> None:
        """Let the run go on in the loop, with a warning, where a stack would train clients otherwise."""
        if self.engine.execution == "stacked" and (why := stack_differs(self.plan(), data)):
            warn(
                "engine.execution is stacked, and a stack would not train clients as a loop does "
                f"({why}): the run goes on with engine.execution=loop"
            )
            loop = replace(self.engine, execution="loop", memory_format=given.memory_format)
            self.engine = loop.resolve()

    @contextmanager
    def _new_folder(self) -> Iterator[Path]:
        """Make a folder for this run alone, though others may begin in the same second."""
        name = f"{datetime.now():%Y%m%d-%H%M%S}-{type(self.method).__name__}"
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

    def _open(self, path: Path, start: int, data: FederatedData, code: Mapping[str, str]) -> RunFolder:
        config = dump(self)
        callbacks = digests(f"{type(each).__module__}.{type(each).__qualname__}" for each in self.callbacks)
        if not self.resumes:
            folder = RunFolder.create(path, config, code=code, callbacks=callbacks)
        else:
            folder = RunFolder.resume(path, start, config, code=code, callbacks=callbacks)
            if self.protocol.choose not in ("last_k", "window"):  # which count rounds from the end
                folder.keep_evaluations(self._evaluates)
        folder.write_partition(data.describe())
        return folder

    def _evaluates(self, round: int) -> bool:
        return self.protocol.evaluates(round, self.rounds, self.eval_every)

    def _tell_start(self, path: Path, start: int, data: FederatedData) -> None:
        sampled = len(self.cohort(0, data.sizes))
        facts = {
            "method": display_name(public_path(type(self.method))),
            "data": f"{type(self.data).__name__}, {type(self.data.partition).__name__}",
            "net": ", ".join(map(str, self.plan().nets)),
            "clients": f"{self.clients}, {sampled} in a round"
            + (f", {data.unseen} unseen ({self.unseen})" if data.unseen else ""),
            "rounds": str(self.rounds) + (f", from {start + 1} on" if start else ""),
            "engine": self.engine.describe(),
            **({"fine-tuning": self._cost_of_finetuning(start, data)} if self.finetune.epochs else {}),
            "protocol": str(self.protocol),
            "run folder": str(path),
        }
        for name, text in facts.items():
            log.info("%s: %s", name, one_line(text))
        for remark in data.remarks:
            log.info("%s", one_line(remark))
        if not self.quiet:
            print_start(facts)
            tell(data.table())

    def _cost_of_finetuning(self, start: int, data: FederatedData) -> str:
        """Say how much is trained for the evaluations that are left."""
        evaluations = counted(sum(map(self._evaluates, range(start, self.rounds))), "evaluation")
        clients = counted(self._scored_count(int(np.count_nonzero(data.sizes))), "client")
        return f"{counted(self.finetune.epochs, 'epoch')} of {clients} in each of {evaluations}"

    def _scored_count(self, clients: int) -> int:
        """Return how many of so many clients an evaluation scores."""
        wanted = self.eval_clients
        if wanted is None:
            return clients
        return max(1, math.floor((wanted * clients if wanted < 1 else wanted) + 1e-9))


class Rounds(Run):
    """The rounds of a federation, being run; use it as a context manager.

    Attributes:
        federation: the settings.
        session: the processes that hold the clients and the server.
        folder: where the records go.
        settings: what decides the numbers; checkpoints carry it.
        asked: set when a signal has asked the run to stop.
        cohort: round -> the clients that train in it.
        callbacks: what looks at every round.
    """

    def __init__(
        self,
        federation: Federation,
        session: Session,
        folder: RunFolder,
        settings: dict[str, Any],
        asked: threading.Event,
        watchers: Sequence[Callback],
    ) -> None:
        self.federation, self.session, self.folder = federation, session, folder
        self.settings, self.asked = settings, asked
        self.path, self.population = folder.path, folder.population
        self._evaluated: Mapping[str, Any] | None = None  # the last evaluation, once it is known
        self.rounds, self.protocol = federation.rounds, federation.protocol
        self.cohort = partial(federation.cohort, samples=session.data.sizes)
        self.callbacks: list[Callback] = [*([] if federation.quiet else [Progress()])]
        self.callbacks += [] if federation.log_level == "warning" else [LogRounds()]
        self.callbacks += [LOGGERS[name]() for name in federation.loggers]
        self.callbacks += [LivePage(), *watchers]
        self.callbacks += [EarlyStopping()] if self.protocol.patience else []
        self.callbacks += federation.callbacks

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        failed: Exception | None = None
        for callback in self.callbacks:
            try:
                callback.end()
            except Exception as error:  # the others have to let go, too
                failed = failed or error
        if failed and kind is None:
            raise failed

    def go_on(self, manifest: Manifest | None) -> int | None:
        """Run the rounds after a checkpoint, or all of them.

        Returns:
            None, or the round before which a signal has stopped the run.
        """
        federation, session, data = self.federation, self.session, self.session.data
        start = manifest.round if manifest else 0
        self._saved = self._done = start
        self._evaluated = None
        self.latest = LatestScores(
            data, manifest.progress if manifest else {}, federation.eval_clients is not None
        )
        self._trained: set[int] = set()
        for record in self.records() if start else ():
            self._trained |= {*record["cohort"]} - {*record["dropped"]}
        over = [callback.start(self, start) for callback in self.callbacks]
        if any(over):
            return None
        began = time.perf_counter()
        for round in range(start, self.rounds):
            self._done = round + 1
            evaluates = federation._evaluates(round)
            if round == 0 and self._scores_untrained:
                self.latest.keep(session.evaluate(round, self.latest.clients.tolist(), self.latest.splits))
            result = session.train(
                round,
                federation.engine.groups(self.cohort(round)),
                federation.on_bad_update,
                self.latest.splits if self._scores_training(evaluates) else (),
            )
            trained = time.perf_counter()
            self.latest.keep(result.scores)
            record = self._record(round, result, evaluates)
            self.folder.append_metrics(record)
            began, before = time.perf_counter(), began
            times = {"seconds": began - before, "train_seconds": trained - before}
            self.folder.append_engine({"round": round, **times, **asdict(session.system_metrics)})
            log.debug("round %d: %.3f s, of which training %.3f s", self._done, *times.values())
            over = [callback.after_round(self, record) for callback in self.callbacks]
            last = any(over) or round == self.rounds - 1
            every = federation.checkpoint_every
            at_end = every or start  # a run that has gone on from a checkpoint would do so again
            if (every and self._done % every == 0) or (at_end if last else self.asked.is_set()):
                self.save()
            if last:
                return None
            if self.asked.is_set():
                return self._done
        return None

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the metrics lines of all rounds that are over."""
        return self.folder.records()

    def save(self) -> None:
        """Write a checkpoint of the round that is over, if there is none yet."""
        if self._saved < self._done:
            self.folder.sync()
            self.session.save(self.path / "checkpoints", self._done, self.latest.progress(), self.settings)
            self._saved = self._done
            log.debug("checkpoint after %d rounds", self._done)

    def accuracies(self, split: str = "test") -> dict[int, float]:
        """Return client -> accuracy of the last evaluation, of the view that the protocol reports."""
        if self._evaluated is None:
            self._evaluated = {}
            for record in self.records():  # of an earlier process
                self._evaluated = record if "evaluation" in record else self._evaluated
        return client_accuracies(self._evaluated, self.population, self.protocol, split)

    def models(self) -> Models:
        """Return the models of all clients as they are now."""
        return self.session.models(self._done, self._trained)

    def _record(self, round: int, result: RoundResult, evaluates: bool) -> dict[str, Any]:
        """Return the metrics line of a round; score all clients first, if it is time to."""
        data = self.session.data
        record: dict[str, Any] = {
            "round": round,
            "cohort": result.ids,
            "samples": data.counts("train")[result.ids].tolist(),
            "loss": [None if loss is None else recorded(loss) for loss in result.loss],
            "steps": result.steps,
            "dropped": sorted(result.bad),
            "up": result.up,
            "down": result.down,
        }
        self._trained |= set(result.ids) - result.bad.keys()
        if evaluates:
            scored = self._scored(round)
            untrained = sorted(set(scored) - self._trained)
            groups = self.federation.engine.groups(scored) if self.federation.finetune.epochs else ()
            current = self.session.evaluate(round, scored, self.latest.splits, untrained, groups)
            if untrained:
                unlisted = sorted(self.federation.sampling.unlisted(data.seen) & set(untrained))
                by = self.session.plan.counts_by
                record["untrained"] = {"clients": untrained, "view": by, "unlisted": unlisted}
            record["evaluation"] = self.latest.evaluation(current, self._after_training)
            if data.unseen:
                record["evaluation"] |= self.latest.points(self.session.unseen(round))
            self._evaluated = record
        if metrics := self.session.server_metrics():
            record["figures"] = {
                name: list(map(recorded, found)) if isinstance(found, list) else recorded(found)
                for name, found in metrics.items()
            }
        if result.bad:
            warn(_dropped_text(round, result.bad))
        return record

    def _scored(self, round: int) -> list[int]:
        """Return the clients that an evaluation scores, ascending."""
        federation, clients = self.federation, self.latest.clients
        if federation.eval_clients is None:
            return list(clients.tolist())
        size = federation._scored_count(len(clients))
        counters = () if federation.eval_draw == "once" else (round,)
        order = torch.randperm(
            len(clients), generator=generator(federation.seed, "scored clients", *counters)
        )
        return sorted(clients[order[:size].numpy()].tolist())

    @property
    def _after_training(self) -> bool:
        federation = self.federation
        asked = federation.eval_points == "both" or self.protocol.point == "after_training"
        return asked and federation.eval_every > 0

    @property
    def _some_wait(self) -> bool:
        """Whether there may be rounds in which a client does not train, or its update is left out."""
        federation = self.federation
        everyone = takes_all(federation.sampling, federation.participation)
        return not everyone or federation.on_bad_update == "drop"

    @property
    def _scores_untrained(self) -> bool:
        """Whether clients count by their initial model until they are sampled."""
        return self._after_training and self._some_wait and not self.protocol.trained_only

    def _scores_training(self, evaluates: bool) -> bool:
        """Say whether clients are scored right after training: their models are not kept to do it later."""
        return self._after_training and (evaluates or self._some_wait)


def _with_page(result: Result) -> Result:
    """Return a result whose folder has its page."""
    write_page(result.folder, lambda: run_page(result))
    return result


def _dropped_text(round: int, bad: dict[int, str]) -> str:
    first, *others = sorted(bad)
    more = f", and {len(others)} more clients" if others else ""
    return f"round {round}: the update of client {first} is dropped: {bad[first]}{more}"
