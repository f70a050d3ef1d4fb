"""All settings of a run, and what follows from them alone."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from rayfl.callbacks.loggers import Name, check_loggers
from rayfl.data import Data, EmbeddedDigits, FederatedData
from rayfl.engine.base import Engine, Plan
from rayfl.engine.ray_engine import Ray
from rayfl.errors import BadCode, BadValue, Conflict, Damaged, UserError, error_context
from rayfl.evaluation.finetune import NO_FINETUNING, Finetune
from rayfl.evaluation.protocol import PROTOCOLS, Default, Protocol
from rayfl.methods import FedBN, Method
from rayfl.nets import CNNB, Architecture
from rayfl.record.checks import Cell
from rayfl.record.folder import check_is, read_config, software
from rayfl.record.history import CONFIG
from rayfl.running import checks
from rayfl.sampling import Bernoulli, Sampling, Uniform, choose_cohort, wanted_clients
from rayfl.settings.arguments import arguments_of, changed_arguments
from rayfl.settings.base import Settings, above, at_least, at_most
from rayfl.settings.description import config_of, differing_keys, dump_config, flatten_config, result_settings
from rayfl.settings.imports import ImportPath
from rayfl.settings.reader import DottedSettings, build_object, find_settings_class, flatten_settings
from rayfl.settings.yaml_file import parse_yaml
from rayfl.system.log import Level
from rayfl.system.own_code import code_digests, is_own
from rayfl.system.text import counted, short_repr
from rayfl.training import Training
from rayfl.transforms import Aggregation, Attack, ClientDP, LocalDP, Transform
from rayfl.transforms.accounting import Exposure, noise_for
from rayfl.transforms.privacy import Private

# Defaults may be shared: a run works on copies, and none of its steps changes them.
DEFAULT_METHOD, DEFAULT_DATA, DEFAULT_TRAINING, DEFAULT_ENGINE = FedBN(), EmbeddedDigits(), Training(), Ray()
DEFAULT_NET, DEFAULT_PROTOCOL, DEFAULT_SAMPLING = CNNB(), Default(), Uniform()


class RunSettings(Settings, place=""):
    """One experiment: a method, data that are divided among clients, and how many rounds there are of it."""

    _fixed = True

    method: Method = DEFAULT_METHOD
    """What clients compute, what they send, and how the server combines it."""
    data: Data = DEFAULT_DATA
    """The data set and how it is divided."""
    net: Architecture | ImportPath | list[Architecture | ImportPath] = DEFAULT_NET
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
    unseen_clients: Annotated[float, above(0)] | None = None
    """How many clients never train, of any partition: a share of them if below 1, else their number. The
    data's seed draws them. They are scored as those of ``unseen`` are, and have the highest client numbers.
    """
    participation: Annotated[float, above(0), at_most(1)] = 1.0
    """Share of the clients sampled in a round."""
    sampling: Sampling = DEFAULT_SAMPLING
    """Who is sampled: ``Uniform``, ``Bernoulli``, ``BySize``, ``Cyclic``, ``Trace`` or an own class."""
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
    transforms: Transform | list[Transform] | None = None
    """What clients' changes of weights go through on their way to the server's step: one transform, or a list
    that clients apply in order, and the server in reverse.
    """
    attack: Attack | None = None
    """What some of the clients do to harm the others."""
    aggregation: Aggregation | None = None
    """What the server does with clients' changes of weights in the place of their mean, such as ``Median``:
    they travel one by one then.
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
    common_test: bool = False
    """Whether evaluations also score every client on one test set for all, the data set's own test part; each
    of them then costs as many forward passes as clients times samples.
    """
    finetune: Finetune = NO_FINETUNING
    """How clients train on their own data before they are scored; what they learn is thrown away."""
    protocol: Protocol = DEFAULT_PROTOCOL
    """The rule that says which model is scored, when, and which number is the reported metric."""
    metrics: list[ImportPath] = field(default_factory=list)
    """Further metrics of each client's scores, which are recorded beside the figure and loss: ``f1`` (macro),
    ``auroc``, ``calibration_error``, import paths of torchmetrics, or of functions of scores [n, classes] and
    labels [n].
    """
    checkpoint_every: Annotated[int, at_least(0), "0: none"] = 10
    """Rounds between two checkpoints; one is also written at the end."""
    checkpoint_keep: Literal["last", "best"] = "last"
    """Which checkpoints stay: the ``last`` two; ``best``: also that of the evaluation that is best on
    validation data, after which one is written, too.
    """
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
        config_of(self)  # refuses texts that no file can hold, and values that were changed afterwards
        if self.net == []:
            raise BadValue("net", "is []", "it must be a net, or a list of at least one")
        if type(self.protocol) not in PROTOCOLS.values():
            known = f"it must be one of {', '.join(PROTOCOLS)}: reports know no others"
            raise BadValue("protocol", f"is a {type(self.protocol).__name__}", known)
        if (drawn := self.unseen_clients) is not None:
            if drawn > 1 and drawn % 1:
                raise BadValue("unseen_clients", f"is {drawn:g}", "give a share below 1, or a whole number")
            if self.unseen is not None:
                raise Conflict("unseen_clients", "is given, and unseen, too", "choose one of them")

    def _repr_line_(self) -> dict[str, Any]:
        always = ("method", "data", "clients", "rounds", "engine")
        main = {name: getattr(self, name) for name in always}
        return {name: value for name, value in main.items() if value is not None} | changed_arguments(self)

    def federated_data(self) -> FederatedData:
        """Return the data, divided among the clients.

        Raises:
            UserError: they are missing, or cannot be divided like this.
        """
        data = self.data.federate(self.clients, self.seed)
        if self.unseen is not None:
            data = data.hold_out(self.unseen)
        elif self.unseen_clients is not None:
            seed = self.seed if self.data.seed is None else self.data.seed
            data = data.hold_out_drawn(_share_or_number(self.unseen_clients, len(data)), seed)
        data = self.data.encode(data) if data.unseen else data
        data = self.attack.poison(data, self.seed) if self.attack else data
        return data.with_common_test() if self.common_test else data

    def cohort(self, round: int, samples: Sequence[int] | None = None) -> list[int]:
        """Return the clients sampled in a round, ascending; there may be none.

        Args:
            round: from 0.
            samples: how many training samples each client has that may train, the first ones; one each if
                not given.
        """
        if samples is None:
            all_train = self.unseen is None and self.unseen_clients is None
            samples = [1] * self.clients if self.clients and all_train else self.federated_data().sizes
        return choose_cohort(self.sampling, round, samples, self.participation, self.seed, self.rounds)

    def recorded_cohort(self, round: int, samples: Sequence[int]) -> list[int]:
        """Return those of a round's clients that have training samples: records have these alone."""
        return [i for i in self.cohort(round, samples) if samples[i]]

    def cohort_size(self, samples: Sequence[int]) -> int:
        """Return how many clients a round has: as many as the first, or on average where each is drawn alone.

        Args:
            samples: how many training samples each client has that may train.
        """
        if isinstance(self.sampling, Bernoulli):
            return wanted_clients(self.participation, len(samples))
        return max(1, len(self.cohort(0, samples)))

    def result_settings(self, data: FederatedData | None = None) -> dict[str, Any]:
        """Return the settings that decide the run's numbers, by name; checkpoints hold them.

        Args:
            data: what ``federated_data`` returns; if not given, without a digest of the data.
        """
        settings = result_settings(config_of(self))
        if self.plan().depends_on_total_rounds or self.sampling.uses_rounds:
            settings["rounds"] = self.rounds
        if not self.finetune.epochs:  # then its options change nothing
            settings = {name: value for name, value in settings.items() if not name.startswith("finetune.")}
        if (trace := self.sampling.digest()) is not None:
            settings["trace"] = trace
        return settings | ({"division": data.digest()} if data else {})

    def code(self) -> dict[str, str]:
        """Return what decides the run's numbers besides settings and data; records and checkpoints carry it.

        By name: rayfl's sources, versions, the kind of processor, the user's own code, and files of nets.
        """
        there = software()
        processor = f"{there['processor']}, {counted(self.engine.threads, 'thread')}"
        return there | {"processor": processor} | self.own_code() | self.plan().digests()

    def own_code(self) -> dict[str, str]:
        """Return digests of the user's own code that decides the run's numbers."""
        config = config_of(self) | {"engine": None}  # which decides no number
        classes = re.findall('"class_path": "(.*?)"', json.dumps(config, ensure_ascii=False))
        return code_digests([*classes, *self.plan().import_paths])

    def plan(self) -> Plan:
        """Return what every process of the run needs."""
        return Plan(
            method=self.method,
            net=self.net,
            training=self.training,
            seed=self.seed,
            engine=self.engine,
            rounds=self.rounds,
            metrics=self.metrics,
            counts_by=self.method.fallback if self.protocol.untrained == "fallback" else "personal",
            finetune=self.finetune,
            averaging=self.averaging,
            transforms=self.transform_list,
            attack=self.attack,
            aggregation=self.aggregation,
            expected=partial(self.sampling.expected, self.participation),
        )

    @property
    def private(self) -> Private | None:
        """The transform that gives privacy, if there is one: the last."""
        last = self.transform_list[-1:]
        return last[0] if last and isinstance(last[0], Private) else None

    def with_noise(self, clients: int) -> Self:
        """Return settings with the noise that an epsilon needs, and refuse too little of it.

        Args:
            clients: how many may train.
        """
        private = self.private
        if not isinstance(private, ClientDP) or private.epsilon is None:
            return self
        if (exposures := self._exposures(clients, self.rounds)) is None:
            raise Conflict(
                "transforms.epsilon",
                f"is {private.epsilon:g}, and nothing is proved of privacy with sampling={self.sampling}",
                "choose Bernoulli, or give noise_multiplier alone, which guarantees nothing then",
            )
        if private.noise_multiplier is None:
            noise = noise_for(exposures, private.epsilon, private.delta)
            noisy = replace(private, noise_multiplier=noise)
            before = self.transform_list[:-1]
            return replace(self, transforms=[*before, noisy] if before else noisy)
        if (spent := private.spent(exposures)) > private.epsilon * (1 + 1e-9):
            noise = noise_for(exposures, private.epsilon, private.delta)
            raise Conflict(
                "transforms.epsilon",
                f"is {private.epsilon:g}, and {self.rounds} rounds spend {spent:.5g}",
                f"set noise_multiplier={noise:g}, or fewer rounds",
            )
        return self

    def guarantee(self, clients: int, done: int) -> tuple[float | None, str] | None:
        """Return the epsilon after so many rounds, None if there is none, and what is guaranteed in words.

        Returns:
            None if no transform is there for privacy.
        """
        if (private := self.private) is None:
            return None
        exposures = self._exposures(clients, done)
        if isinstance(private, LocalDP):  # which counts rounds, however clients come to take part
            exposures = exposures or (Exposure("certain", done),)
        if exposures is None:
            return None, f"no guarantee: nothing is proved of sampling={self.sampling}"
        if self.attack and self.attack.at == "cohort" and isinstance(private, ClientDP):
            return None, "no guarantee: attackers send what they make of others' changes, without noise"
        if math.isinf(epsilon := private.spent(exposures)):
            return None, "no guarantee: there is no noise"
        return epsilon, private.guarantee(epsilon, exposures)

    def _exposures(self, clients: int, done: int) -> tuple[Exposure, ...] | None:
        """Return ``Sampling.exposures``; None of the user's own class, which may choose otherwise."""
        if is_own(type(self.sampling)):
            return None
        return self.sampling.exposures(self.participation, clients, self.rounds, done)

    @property
    def transform_list(self) -> list[Transform]:
        """The transforms as a list, also where there is one or none."""
        found = self.transforms
        return found if isinstance(found, list) else [] if found is None else [found]

    def check(self, data: FederatedData) -> tuple[list[str], str]:
        """Refuse what cannot work, before any process is started.

        Args:
            data: what ``federated_data`` returns.

        Returns:
            Warnings for the user, and the digest of what is frozen in the nets, empty where nothing is.

        Raises:
            UserError: method, net, data, training and protocol do not go together.
        """
        self._check_recorded()
        check_loggers(self.loggers)
        if self.eval_clients is not None and self.protocol.point != "after_aggregation":
            problem = (
                f"is {self.eval_clients:g}, and all are scored at the protocol's point, {self.protocol.point}"
            )
            raise Conflict("eval_clients", problem, "leave it out, or set protocol.point=after_aggregation")
        checks.check_names(type(self.sampling))
        self.sampling.check(data.seen, self.rounds)
        self.cohort(0, data.sizes)
        judged = self.checkpoint_every and self.eval_every and data.counts("val")[: data.seen].any()
        if self.checkpoint_keep == "best" and not judged:
            needs = "is best, which needs validation data, and checkpoint_every and eval_every above 0"
            raise Conflict("checkpoint_keep", needs, "set data.val_fraction, or leave it out")
        settled = replace(self, clients=len(data)).with_noise(data.seen)
        warnings, frozen = checks.check_run(settled.plan(), self.protocol, data)
        if (promise := settled.guarantee(data.seen, self.rounds)) and promise[0] is None:
            warnings.append(f"transforms: {type(self.private).__name__}, and {promise[1]}")
        if patience := self.protocol.patience:
            given = f"protocol.patience is {patience}"
            if self.sampling.uses_rounds:
                warnings.append(f"{given}: a run that ends early lacks the last round, which sampling counts")
            if not self.eval_every:
                warnings.append(f"{given}, and eval_every is 0: without evaluations no run ends early")
        return warnings, frozen

    def _check_recorded(self) -> None:
        """Refuse what config.yaml would not give back: such a run could neither go on nor be repeated."""
        with error_context("config.yaml would not hold this federation"):
            found = build_object(RunSettings, flatten_settings(parse_yaml(dump_config(self))))
            one, other = config_of(self), config_of(found)
            if repr(one) != repr(other):
                flat = [flatten_config(each) for each in (one, other)]
                name = [*differing_keys(*flat), *differing_keys(one, other)][0]
                was, became = (short_repr(each.get(name)) for each in flat)
                advice = "give an object (CNNB(), not 'CNNB'), and let an __init__ keep what it is given"
                raise BadCode(name, f"is {was}, and {became} after it has been read", advice)

    def evaluates(self, round: int) -> bool:
        """Return whether clients are scored after a round."""
        return self.protocol.evaluates(round, self.rounds, self.eval_every)

    def scored_count(self, clients: int) -> int:
        """Return how many of so many clients an evaluation scores."""
        wanted = self.eval_clients
        if wanted is None:
            return clients
        return _share_or_number(wanted, clients)


def _share_or_number(wanted: float, clients: int) -> int:
    """Return how many clients are wanted, at least one: a share of them if below 1, else this number."""
    return max(1, math.floor((wanted * clients if wanted < 1 else wanted) + 1e-9))


S = TypeVar("S", bound=RunSettings)


def recorded_settings(cls: type[S], folder: str | Path) -> S:
    """Return the settings of the run in a folder, as an object of a class."""
    path = Path(folder) / CONFIG
    check_is(path.parent, "run", path.name)
    config = read_config(path.parent)
    try:
        return build_object(cls, flatten_settings(config))
    except UserError as error:
        raise Damaged(path, f"cannot be used: {error}") from error


def with_data_root(settings: DottedSettings) -> DottedSettings:
    """Add the folder of data sets from the environment, if the data are in files and none is given."""
    root = os.environ.get("RAYFL_DATA")
    if not root or settings.get("data.root") is not None or "root" not in data_options(settings.get("data")):
        return settings
    return settings | {"data.root": root}


def data_options(name: Any) -> dict[str, Any]:
    """Return the options of a data set; empty for an unknown one, which is refused elsewhere."""
    if not isinstance(name, str):
        return {}
    try:
        return arguments_of(find_settings_class(Data, name, "data"))
    except UserError:
        return {}
