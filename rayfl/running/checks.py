"""Checks before a run starts: settings that do not go together, and warnings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FunctionType

import numpy as np
import torch

from rayfl.data import FederatedData
from rayfl.data.federated import LEAST_TEST
from rayfl.engine.base import Plan
from rayfl.engine.set_up import frozen_digest, set_up, try_prepare, try_scores, try_steps
from rayfl.engine.travel import first_server_state
from rayfl.errors import BadCode, BadData, Conflict, Unknown
from rayfl.evaluation.finetune import FINETUNED, Finetune
from rayfl.evaluation.measures import measures, try_measures
from rayfl.evaluation.protocol import Protocol
from rayfl.methods import METHODS, Method
from rayfl.methods.base import further_nets
from rayfl.nets.module import is_own_net
from rayfl.settings.arguments import arguments_of
from rayfl.system.own_code import is_own
from rayfl.system.text import closest_name, counted, did_you_mean, short_repr
from rayfl.training import Net, Training
from rayfl.training.context import Context
from rayfl.training.examples import Examples
from rayfl.training.losses import BatchLoss, resolve_loss
from rayfl.training.sums import Reduction


def check_run(plan: Plan, protocol: Protocol, data: FederatedData) -> tuple[list[str], str]:
    """Refuse what cannot work before any process is started.

    Returns:
        Warnings, and the digest of what is frozen in the nets, which is empty where nothing is.
    """
    method = plan.method
    own = type(method) not in METHODS.values()
    if own:
        check_class(type(method))
    plan.training.schedule.check(plan.rounds)
    plan.training.optimiser.check()
    _check_task(method, data)
    loss = resolve_loss(plan.training.loss, data.dataset.task)
    loss.check(data.dataset)
    if method.facts.reads_losses and isinstance(loss, BatchLoss):
        raise Conflict("training.loss", f"is {loss}, of whole batches, and {method} needs one of samples")
    if plan.training.precision == "tf32" and plan.engine.device == "cpu":
        raise Conflict("training.precision", "is tf32, which only GPUs have", "choose float32 or bfloat16")
    for setting, wanted in method.facts.works_with.items():
        found, known = getattr(plan.training, setting), wanted if isinstance(wanted, tuple) else (wanted,)
        if not (found.linear if setting == "optimiser" else found in known):
            problem = f"is {found}, and {method} works with {' or '.join(map(str, known))} alone"
            remedy = f"choose --training.{setting} {known[0]}, or another method"
            raise Conflict(f"training.{setting}", problem, remedy)
    nets, context = set_up(plan, data)
    further = {context.nets[option]: net for option, net in further_nets(method).items() if net}
    for built, net in {**further, **dict(zip(nets, plan.nets, strict=True))}.items():
        if is_own_net(net):
            try_steps(built, str(net), plan, data)
    _check_outputs(plan, nets, data)
    if own:
        try_prepare(method, context)
    if not all(isinstance(each, Reduction) for each in method.uploads(context).values()):
        remedy = "it must be upload key -> Mean(), Sum() or Gather(), as in {'weights': Mean()}"
        problem = f"returns {short_repr(method.uploads(context))}"
        raise BadCode(f"{type(method).__name__}.uploads", problem, remedy)
    declared = method.uploads(context)
    if (pipeline := plan.pipeline(context.reductions(declared), data.seen)).parts:
        down = method.download(first_server_state(method, context))
        pipeline.check(context, declared, down, method.overrides("download_for"))
    if any(how.before for how in method.uploads(context).values()) != method.overrides("before_round"):
        place = f"{type(method).__name__}.before_round"
        raise BadCode(place, "belongs to uploads with before=True", "write both")
    for thing in (plan.training.schedule, plan.training.optimiser, loss, *plan.transforms):
        check_names(type(thing))
    _check_unseen(plan.method, nets, data)
    if own or plan.finetune.epochs:
        scores = try_scores(method, context, nets[0], plan, data)
        if plan.finetune.epochs:
            plan.finetune.check(method, scores)
    _check_headline(method, protocol, data, plan.finetune)
    try_measures(measures(plan.metrics, data.dataset), data)
    if protocol.needs_validation and not data.counts("val")[: data.seen].any():
        problem = f"{protocol} goes by validation data, and the data have none"
        raise Conflict("protocol", problem, f"{_SET_VAL}, or choose another protocol")
    names = [str(net) for net in plan.nets]
    warning = method.warning(plan.training, data, {})
    warnings = [
        *([] if warning is None else [warning]),
        *_check_warmup(plan),
        *_check_validation(method, data),
        *_check_batches(plan.training, names, nets, context.nets, data),
        *_check_shared(method, plan, context),
    ]
    return warnings, frozen_digest(plan, nets, context)


_SET_VAL = "set data.val_fraction, for example to 0.1"


def _check_warmup(plan: Plan) -> list[str]:
    """Warn if the run ends during the warm-up of the learning rate."""
    warmup = plan.training.schedule.warmup
    if warmup < plan.rounds:
        return []
    ended = counted(plan.rounds, "round")
    return [f"training.schedule.warmup is {warmup}, and the run ends before, after {ended}"]


MIN_SIMILARITY = 0.85
"""Similarity, from 0 to 1, at which one name may be the other misspelt."""


def check_class(method: type[Method]) -> None:
    """Refuse a method with wrong names, or with functions in place of properties: these are always true."""
    check_names(method)
    for cls in (each for each in method.__mro__ if is_own(each)):
        for name, member in vars(cls).items():
            default = vars(Method).get(name, member)
            if isinstance(member, FunctionType) and not isinstance(default, FunctionType):
                raise BadCode(f"{cls.__name__}.{name}", "must be a property", "write @property above it")


def check_names(method: type) -> None:
    """Refuse a member with almost the name of a hook, because rayfl would not call it."""
    options = set(arguments_of(method))
    for cls in method.__mro__:
        if not is_own(cls):
            return
        known = {name for base in cls.__mro__[1:] for name in vars(base) if not name.startswith("_")}
        in_order = {tuple(sorted(name.split("_"))): name for name in known}
        for name in vars(cls).keys() - known - options:
            swapped = in_order.get(tuple(sorted(name.split("_"))))  # such as client_init
            near = swapped or closest_name(name, known, MIN_SIMILARITY)
            if near is not None and not name.startswith("_"):
                problem = f"is nothing that rayfl calls; did you mean {near}?"
                raise Unknown(f"{cls.__name__}.{name}", problem, "If not, begin it with an underscore")


def _check_validation(method: Method, data: FederatedData) -> list[str]:
    """Refuse clients without validation data if the method needs them; warn if it prefers them."""
    train, val = (data.counts(split)[: data.seen] for split in ("train", "val"))
    without = np.flatnonzero((train > 0) & (val == 0))
    if not len(without) or method.facts.validation == "unused":
        return []
    name, so_many = type(method).__name__, f"({len(without)} such clients)"
    if method.facts.validation == "needed":
        problem = f"has no validation data {so_many}, and {name} goes by those of every client"
        raise Conflict(f"client {without[0]}", problem, f"{_SET_VAL}, or use fewer clients")
    return [
        f"{name} goes by validation data where a client has some, and by training data otherwise; client "
        f"{without[0]} has none {so_many}: {_SET_VAL}"
    ]


def _check_unseen(method: Method, nets: Sequence[Net], data: FederatedData) -> None:
    """Refuse clients that never train if they cannot be scored or adapted to."""
    for i, samples in enumerate(data.counts("test")[data.seen :], data.seen):
        if method.overrides("adapt") and not nets[i % len(nets)].has_batch_norm:
            problem = f"has no BatchNorm, by which {type(method).__name__} adapts to clients that never train"
            raise Conflict("net", problem, "use a net with BatchNorm, such as CNNB")
        if samples < LEAST_TEST:
            problem = f": client {i} has {samples} test samples, and needs {LEAST_TEST} to be adapted to"
            raise BadData("unseen", problem, "use fewer clients")


def _check_headline(method: Method, protocol: Protocol, data: FederatedData, finetune: Finetune) -> None:
    """Refuse a protocol whose headline needs clients or views that do not exist.

    A method may lack the global view: tables list it without a headline.
    """
    if protocol.point.startswith("unseen") and not data.unseen:
        remedy = "choose others, by --unseen DOMAIN or --unseen_clients SHARE"
        raise Conflict("protocol.point", f"is {protocol.point}, and all clients train", remedy)
    tuned = [FINETUNED] if finetune.epochs and protocol.point in ("after_aggregation", "unseen") else []
    known = [*method.views, *tuned]
    if protocol.view not in {"personal", "global", *known}:
        near, there = did_you_mean(protocol.view, known), f"{type(method).__name__} has {', '.join(known)}"
        needs = f"{FINETUNED} needs finetune.epochs, and protocol.point after_aggregation or unseen"
        raise Unknown("protocol.view", f"is {protocol.view}{near} {there}; {needs}")


def _check_batches(
    training: Training,
    names: Sequence[str],
    nets: Sequence[Net],
    further: Mapping[str, Net],
    data: FederatedData,
) -> list[str]:
    """Refuse batches that are too small for BatchNorm, and warn of batches of 2 or 3 samples."""
    of_all = [f"method.{option}" for option, net in further.items() if net.has_batch_norm]
    normed = [name for name, net in zip(names, nets, strict=True) if net.has_batch_norm] + of_all
    if not normed:
        return []
    if training.batch_size == 1:
        problem = f"is 1, and {normed[0]} has BatchNorm, which needs 2 samples to a batch"
        raise Conflict("training.batch_size", problem, "use a larger one, or a net without BatchNorm")
    of_normed = [(i, n) for i, n in enumerate(data.sizes) if of_all or nets[i % len(nets)].has_batch_norm]
    single = [i for i, n in of_normed if n == 1]
    if single and training.bn_single == "refuse":
        name = (of_all or [names[single[0] % len(names)]])[0]
        problem = f"has one training sample ({len(single)} such clients), and {name} has BatchNorm"
        raise Conflict(f"client {single[0]}", problem, "use fewer clients, or --training.bn_single eval")
    few = [i for i, n in of_normed if 2 <= _last_batch(training, n) <= 3]
    if not few:
        return []
    return [
        f"client {few[0]} ({len(few)} such clients) has a last batch of 2 or 3 samples, of which "
        "BatchNorm has poor statistics: choose another training.batch_size, or "
        "training.last_batch=drop, should accuracy break down"
    ]


def _check_outputs(plan: Plan, nets: Sequence[Net], data: FederatedData) -> None:
    """Refuse nets whose scores are not where the targets ask for them."""
    dataset, positions = data.dataset, data.dataset.task.kind == "positions"
    examples = Examples(dataset, torch.device("cpu"), plan.training.dtype, channels_last=False)
    x, y = examples.batch(torch.zeros(2, dtype=torch.int64))
    wanted = [2, *(y.shape[1:] if positions else ()), dataset.outputs]
    for net, name in dict(zip(nets, plan.nets, strict=True)).items():
        with torch.no_grad():
            found = list(net.eval(net.initial(plan.seed), x).shape)
        if found != wanted:
            problem = f"{name}: of two inputs it gives scores {found}, and the targets need {wanted}"
            raise Conflict(
                "net", problem, "choose CharLSTM or Transformer with net.positions, or one of your own"
            )


def _check_task(method: Method, data: FederatedData) -> None:
    """Refuse a method whose formulas have no meaning for what is learned."""
    kind, known = data.dataset.task.kind, method.facts.tasks
    if kind not in known:
        fitting = sorted(name for name, each in METHODS.items() if kind in each().facts.tasks)
        problem = f"is {method}, which is for {' and '.join(known)}, and the targets are {kind}"
        raise Conflict("method", problem, f"choose one of {', '.join(fitting)}")


def _last_batch(training: Training, samples: int) -> int:
    """Return the size of a client's last batch; 0 if it is full or left out."""
    dropped = training.last_batch == "drop" and samples > training.batch_size
    return 0 if dropped else samples % training.batch_size


def _check_shared(method: Method, plan: Plan, context: Context) -> list[str]:
    """Warn if a method keeps a part of the net with the clients, and the net has no such part."""
    if not method.overrides("shared") or context.shared != context.net.modules_of.keys():
        return []
    return [
        f"{type(method).__name__} leaves a part of the net with the clients, such as BatchNorm, and "
        f"{', '.join(map(str, plan.nets))} has no such part that is not frozen: all of it is averaged"
    ]
