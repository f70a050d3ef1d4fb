"""What a method sees of a client: its facts, its net, and ``fit``, the one training loop."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

import torch
from torch import Tensor

from rayfl.errors import BadCode, Conflict
from rayfl.randomness import generator, seed_of
from rayfl.training.context import Context
from rayfl.training.dropout import draw_from
from rayfl.training.examples import Examples
from rayfl.training.losses import resolve_loss
from rayfl.training.net import Batch, Cut, Net
from rayfl.training.optimisers import SGD, Descent, Optimiser
from rayfl.training.params import Params
from rayfl.training.settings import Training

Weights = Params | dict[str, Params]
"""One net, or several by name that are trained together."""


Kept = dict[str, dict[int, Tensor]]
"""What optimisers remember of a client from round to round: phase -> place -> tensor."""
FitLoss = Callable[[Any, Batch, Any], Tensor]
"""``loss(weights, batch, extra)``: a scalar, or one value per sample of which the mean is taken."""
GradientRule = Callable[[Any, Any, Any], Any]
"""``rule(gradients, weights, extra) -> gradients``, on trainable entries only."""


_NO_NETS: dict[str, Net] = {}


class Client:
    """A client, as ``Method.local_update`` and ``Method.scores`` see it.

    ``net``, ``nets``, ``context``, ``task``, ``loss``, ``loss_of`` and ``losses_of`` may be used in a loss.
    Everything else differs between clients and must be read outside and handed to ``fit`` as ``extra``: under
    stacked execution one loss serves many clients, so reading it inside a loss raises.

    Args:
        id: the client's number.
        net: the net as a function of its weights.
        initial: the initial weights, the same for all clients with this net.
        examples: the dataset's inputs and targets.
        indices: int64 [n], the client's training samples in the dataset.
        class_counts: int64 [classes], training samples per class, on the device of the weights.
        training: the shared settings.
        seed: the run's seed.
        round: the round, counted from 0.
        val: int64 [n], its validation samples; none if not given.
        nets: what the method has besides the client's net, by option.
        rounds: how many the run has.
        context: the facts of the run.

    Attributes:
        task: what is learned, the same for every client; it says how far two models' scores are apart.
    """

    def __init__(
        self,
        id: int,
        net: Net,
        initial: Params,
        examples: Examples,
        indices: Tensor,
        class_counts: Tensor,
        training: Training,
        seed: int,
        round: int,
        val: Tensor | None = None,
        nets: Mapping[str, Net] | None = None,
        rounds: int = 1,
        context: Context | None = None,
    ) -> None:
        self.nets = nets or _NO_NETS
        self._context = context
        self._normed = net.has_batch_norm or any(other.has_batch_norm for other in self.nets.values())
        if self._normed and len(indices) == 1:
            # training.bn_single=eval; otherwise the run was refused before it started
            net, self.nets = net.eval, {name: other.eval for name, other in self.nets.items()}
        self.net = net
        self._draws = net.draws or any(other.draws for other in self.nets.values())
        self.task = examples.task
        self._loss = resolve_loss(training.loss, self.task)
        self._id = id
        self._initial = initial
        self._examples = examples
        self._indices = indices
        self._val = indices[:0] if val is None else val
        self._class_counts = class_counts
        self._training = training
        self._seed = seed
        self._round = round
        self._rounds = rounds
        self._kept: Kept | None = None  # what optimisers keep; None: nothing
        self._fits = 0
        self._unnamed: Counter[str] = Counter()  # fits without a phase, by their losses

    @property
    def id(self) -> int:
        """The client's number, from 0."""
        return _outside_loss(self._id, "id")

    @property
    def initial(self) -> Params:
        """The initial weights of the run, the same for every client with this net."""
        return _outside_loss(self._initial, "initial")

    @property
    def samples(self) -> int:
        """The number of training samples, n_i."""
        return _outside_loss(len(self._indices), "samples")

    @property
    def val_samples(self) -> int:
        """The number of validation samples, which may be 0; see ``Facts.validation``."""
        return _outside_loss(len(self._val), "val_samples")

    @property
    def class_counts(self) -> Tensor:
        """The number of training samples per class, int64 [classes]."""
        self._check_classes("class_counts")
        return _outside_loss(self._class_counts, "class_counts")

    @property
    def classes(self) -> int:
        """The number of classes of the data set."""
        self._check_classes("classes")
        return len(self._class_counts)

    def _check_classes(self, member: str) -> None:
        if self.task.kind != "classes":
            problem = f"is read by the method, and the targets are {self.task.kind}"
            raise BadCode(f"client.{member}", problem, "let the method's facts.tasks have classes alone")

    @property
    def lr(self) -> float:
        """The learning rate of this round."""
        return _outside_loss(self._training.lr_at(self._round, self._rounds), "lr")

    @property
    def round(self) -> int:
        """The round, from 0."""
        return _outside_loss(self._round, "round")

    @property
    def context(self) -> Context:
        """The facts of the run, as the server has them."""
        assert self._context is not None
        return self._context

    def shared_part(self, w: Params) -> Params:
        """Return the entries that travel."""
        return self.context.shared_part(w)

    def personal_part(self, w: Params) -> Params:
        """Return the entries that stay with the client."""
        return self.context.personal_part(w)

    def random_weights(self) -> Params:
        """Draw weights from the initialisation's distribution, from a stream of this client's own."""
        weights = self.net.initial(self._seed, _outside_loss(self._id, "random_weights") + 1)
        return weights.to(self._examples.device)

    def generator(self, purpose: str) -> torch.Generator:
        """Return a fresh CPU generator of the client's own for what it draws in this round."""
        id = _outside_loss(self._id, "generator")
        return generator(self._seed, f"client {purpose}", id, self._round)

    def loss(self, w: Params, batch: Batch, extra: Any = None) -> Tensor:
        """Return the run's loss, ``training.loss``, of a batch: the plain loss, as ``fit`` takes it."""
        return self.loss_of(self.net(w, batch.x), batch)

    def loss_of(self, scores: Tensor, batch: Batch) -> Tensor:
        """Return the run's loss of scores, [B, outputs], of a batch, the mean over its samples."""
        return self._loss.mean(scores, batch.y, batch.counts)

    def losses_of(self, scores: Tensor, batch: Batch) -> Tensor:
        """Return the run's loss of scores, [B, outputs], of a batch, sample by sample: [B]."""
        return self._loss.per_sample(scores, batch.y, batch.counts)

    def eval(self, w: Params, x: Tensor, net: str | None = None) -> NetCall:
        """Return what gives the scores, [B, outputs], in evaluation mode, once ``Method.scores`` awaits it.

        Args:
            w: the weights.
            x: inputs, [B, ...], as ``scores`` is handed them.
            net: the option of a further net of the method; by default the client's net.
        """
        return NetCall((self.net if net is None else self.nets[net]).eval, None, w, x)

    def features(self, w: Params, x: Tensor, cut: Cut = "last_layer") -> NetCall:
        """Return what gives the head's inputs, [B, d], of which ``client.net.eval.head`` makes scores."""
        return NetCall(self.net.eval, cut, w, x)

    def fit(
        self,
        start: Weights,
        loss: FitLoss | tuple[FitLoss, ...],
        extra: Any = None,
        *,
        before_clip: GradientRule | None = None,
        after_clip: GradientRule | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        optimiser: Optimiser | None = None,
        lr: float | None = None,
        momentum: float | None = None,
        weight_decay: float | None = None,
        clip: float | None = None,
        stream: int | None = None,
        split: Literal["train", "val"] = "train",
        share: float = 1.0,
        phase: str | None = None,
    ) -> Awaitable[Fitted]:
        """Train from ``start`` on the client's data by the run's optimiser; ``await`` the result.

        A step is: gradient, ``before_clip``, clip (each net by its own norm), ``after_clip``, weight decay,
        momentum, update. Buffers are carried along as the net changes them.

        Args:
            start: a net's weights, or several nets' by name; not changed.
            loss: ``loss(weights, batch, extra)``; takes per-client values through ``extra`` only. Several
                losses take turns, an epoch each, in every one of the ``epochs``, or all of the
                ``training.steps`` each. Tensors that the loss of a turn does not depend on do not change in
                it, and their momentum does not change either.
            extra: tensors, Params and numbers, also nested, of one shape for all clients. An object that is
                the same for all clients is not copied.
            before_clip: a change of the gradient before the clip (a proximal term).
            after_clip: a change of the gradient after the clip (a control variate).
            epochs: passes over the data instead of ``training.epochs`` or ``training.steps``.
            batch_size: samples per step instead of ``training.batch_size``; 0 takes all data at once.
            optimiser: instead of ``training.optimiser``.
            lr: learning rate instead of the round's.
            momentum: instead of ``training.momentum``.
            weight_decay: instead of ``training.weight_decay``.
            clip: largest norm of a net's gradient instead of ``training.clip``; 0 does not clip.
            stream: number of the batch order; by default the number of the fit within the round. Two fits
                with one number see the same batches.
            split: train on the training data (``train``) or on the validation data (``val``).
            share: train on this share of the samples alone, drawn for this fit, at least one; where a net has
                BatchNorm at least two.
            phase: whose optimiser goes on in this fit where ``training.optimiser_state`` is kept: that of the
                last fit with this name. By default the name is that of the loss, and the number of the fit
                among those of the round with this loss.
        """
        indices = self._split("fit", split)
        stream = self._fits if stream is None else stream
        self._fits += 1
        settings = self._training
        optimiser = settings.optimiser if optimiser is None else optimiser
        if momentum and not optimiser.takes_momentum:
            raise Conflict(
                "client.fit",
                f"gets momentum={momentum!r}, and {optimiser} has no momentum",
                "leave it out, or train with --training.optimiser SGD",
            )
        if momentum is None:
            momentum = settings.momentum if optimiser.takes_momentum else 0.0
        descent = Descent(
            optimiser,
            lr=settings.lr_at(self._round, self._rounds) if lr is None else lr,
            momentum=momentum,
            weight_decay=settings.weight_decay if weight_decay is None else weight_decay,
            clip=settings.clip if clip is None else clip,
        )
        losses = loss if isinstance(loss, tuple) else (loss,)
        if phase is None:
            kind = " ".join(map(_name_of, losses))
            phase = f"{kind} {self._unnamed[kind]}"
            self._unnamed[kind] += 1
        if share < 1:
            draw = generator(self._seed, "share", self._id, self._round, stream)
            count = max(2 if self._normed else 1, math.ceil(share * len(indices)))
            indices = indices[torch.randperm(len(indices), generator=draw)[:count].sort().values]
        passes = self._passes(stream, batch_size, indices)
        if settings.steps is not None and epochs is None:
            length = settings.work_of(self._id, self._round, self._seed, settings.steps)
            batches = list(islice(chain.from_iterable(passes), length * len(losses)))
        else:
            if epochs is None:
                epochs = settings.work_of(self._id, self._round, self._seed, settings.epochs)
            count = epochs * len(losses)
            batches = list(chain.from_iterable(islice(passes, count)))
            length = len(batches) // max(1, count)
        key = seed_of(self._seed, "noise", self._id, self._round, stream)
        return Request(
            self, start, losses, extra, before_clip, after_clip, descent, batches, length, key, phase=phase
        )

    def total(
        self,
        function: Callable[[Any, Batch, Any], Any],
        w: Weights,
        extra: Any = None,
        *,
        batches: int | None = None,
        of_class: int | None = None,
        split: Literal["train", "val"] = "train",
    ) -> Request:
        """Sum ``function(w, batch, extra)``, tensors or nested ones, over the client's data; ``await`` it.

        No gradient is taken and nothing is changed: use ``net.eval`` inside.

        Args:
            function: returns tensors for a batch, also nested in dicts, lists and tuples.
            w: a net's weights, or several nets' by name.
            extra: as in ``fit``.
            batches: take only so many batches, the first of the round's first fit; with ``of_class`` the
                first of its samples, in batches of their own.
            of_class: take only samples of this class, of which the client has some.
            split: of the training data (``train``) or the validation data (``val``), of which a client has
                some where the method's facts say that it is ``needed``.
        """
        indices = self._split("total", split)
        if of_class is not None:
            indices = indices[self._examples.targets(indices) == of_class]
        parts = list(indices.split(max(self._training.batch_size, 256)))
        if batches is not None:
            parts = (next(self._passes(0, indices=indices)) if split == "train" else parts)[:batches]
        key = seed_of(self._seed, "noise", self._id, self._round, -1)
        none = Descent(_SGD, 0, 0, 0, 0)
        return Request(self, w, (function,), extra, None, None, none, parts, len(parts), key, total=True)

    async def renew_statistics(self, w: Params, epochs: int | None = None) -> Params:
        """Return weights whose running statistics are renewed on the client's data; no parameter moves.

        Args:
            w: a net's weights.
            epochs: passes over the data in train mode instead of what the run has for a fit.
        """
        net = self.net

        def nothing(w: Params, batch: Batch, extra: None) -> Tensor:
            return net(w, batch.x).sum() * 0

        fitted = await self.fit(Params(w.tensors, frozenset()), nothing, epochs=epochs)
        return w.merge(fitted.weights)  # with the names of the parameters

    @property
    def _batch_counts(self) -> Tensor | None:
        """What batches have as ``counts``."""
        return self._class_counts if self._loss.uses_counts else None

    def _split(self, call: str, split: str) -> Tensor:
        """Return the client's samples of a split; refuse a sum over none, and to train on none."""
        indices = {"train": self._indices, "val": self._val}[split]
        if not len(indices) and (split == "val" or call == "total"):
            raise BadCode(
                f"client.{call}",
                f"finds no {split} data of client {self._id}: ask client.val_samples first, or set "
                'validation="needed" in the method\'s facts, so that such a run is refused before it starts',
            )
        return indices

    def _passes(
        self, stream: int, size: int | None = None, indices: Tensor | None = None
    ) -> Iterator[list[Tensor]]:
        """Yield the batches of one pass over the data after another, each in its own order, without end."""
        indices = self._indices if indices is None else indices
        order = generator(self._seed, "batches", self._id, self._round, stream)
        n = len(indices)
        size = self._training.batch_size if size is None else size or max(1, n)
        while True:
            batches = list(indices[torch.randperm(n, generator=order)].split(size))
            if self._training.last_batch == "drop" and n > size and len(batches[-1]) < size:
                batches.pop()
            elif self._normed and len(batches) > 1 and len(batches[-1]) == 1:
                batches[-2:] = [torch.cat(batches[-2:])]  # BatchNorm has no variance of one sample
            yield batches


def _name_of(loss: FitLoss) -> str:
    """Return the name of a loss; methods often call theirs ``loss``, as the run's is called."""
    if getattr(loss, "__func__", None) is Client.loss:
        return "training.loss"
    return getattr(loss, "__name__", type(loss).__name__)


class Fitted(NamedTuple):
    """What a fit returns.

    Attributes:
        weights: the trained weights, in the structure of ``start``.
        steps: the number of steps taken.
        loss: the mean training loss over the steps; 0 where there were none.
        effective_steps: the sum of the weights with which the gradients have entered the result: ``steps``
            without momentum m, else the sum over j = 1..steps of (1 - m^j) / (1 - m). It has no meaning
            where optimisers are kept, and is NaN where one is not linear in the gradients, as Adam is: see
            ``Facts.works_with``.
    """

    weights: Any
    steps: int
    loss: float
    effective_steps: float


@dataclass(frozen=True, eq=False)
class NetCall(Awaitable[Tensor]):
    """A call of a net in evaluation mode that a method waits for while it scores.

    It hands itself to whoever drives the coroutine, and is sent the result: see ``evaluation.score``.
    """

    net: Net
    cut: Cut | None  # under which features are asked for; None: scores
    w: Params
    x: Tensor

    def run(self, x: Tensor) -> Tensor:
        """Return what the net makes of inputs."""
        return self.net(self.w, x) if self.cut is None else self.net.features(self.w, x, self.cut)

    def __await__(self) -> Generator[NetCall, Tensor, Tensor]:
        result = yield self
        return result


@dataclass(frozen=True, eq=False)
class Request(Awaitable[Any]):
    """A fit (or a total) that a method waits for.

    It hands itself to whoever drives the coroutine, and is sent the result.
    """

    client: Client
    start: Weights
    losses: tuple[Callable[..., Any], ...]  # epoch by epoch in turn
    extra: Any
    before_clip: GradientRule | None
    after_clip: GradientRule | None
    descent: Descent
    batches: list[Tensor]  # indices into the dataset
    epoch_length: int  # batches per epoch, or per turn of a loss
    key: int
    total: bool = False
    phase: str = ""  # whose optimiser goes on

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a fit has no {name!r} before it is awaited: write `await client.fit(...)`")

    def __await__(self) -> Generator[Request, Any, Any]:
        result = yield self
        return result


_SGD = SGD()

T = TypeVar("T")

_loss_is_running = False


@contextmanager
def inside_loss(key: Tensor | None = None, alone: bool = False) -> Iterator[None]:
    """Mark that a loss, a rule or a summand runs: none of them may read the facts of a single client.

    Args:
        key: of the step, for dropout in a loss; nothing else may draw.
        alone: whether it serves a single client, so that it may read these facts.
    """
    global _loss_is_running
    _loss_is_running = not alone
    draw_from(key)
    try:
        yield
    finally:
        _loss_is_running = False
        draw_from(None)


def _outside_loss(value: T, name: str) -> T:
    if _loss_is_running:
        raise RuntimeError(
            f"client.{name} differs between clients: read it in local_update and pass it to fit as `extra`"
        )
    return value
