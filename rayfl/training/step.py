"""What the loop and the stack share: clients' updates under way, and what makes up a step."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rayfl.errors import BadCode, Conflict
from rayfl.system.text import short_repr
from rayfl.training.client import Fitted, GradientRule, NetCall, Request, inside_loss
from rayfl.training.params import Params

LocalUpdate = Coroutine[Request, Any, Any]
Observer = Callable[[int, Fitted], None]
"""Told of every finished fit: the position of the client among the coroutines, and the result."""


AWAITED: dict[type, tuple[str, str]] = {
    Request: ("local_update", "client.fit and client.total; client.net.eval(w, x) is no coroutine"),
    NetCall: ("scores", "client.eval and client.features alone"),
}
"""What coroutines may wait for: whose they are, and the calls that give it."""


class UnderWay:
    """Clients' coroutines, and how far they are: at which request each waits, or what it has returned.

    Args:
        updates: the coroutines.
        kind: what they may wait for.
    """

    def __init__(self, updates: Sequence[LocalUpdate], kind: type[Request | NetCall] = Request) -> None:
        self.updates, self._kind = updates, kind
        self.results: list[Any] = [None] * len(updates)
        self.waiting: dict[int, Any] = {}

    def advance(self, k: int, answer: Any) -> None:
        """Let a coroutine go on with the answer to its request, to its next request or its end."""
        try:
            request = self.updates[k].send(answer)
        except StopIteration as end:
            self.waiting.pop(k, None)
            self.results[k] = end.value
            return
        if not isinstance(request, self._kind):
            place, wanted = AWAITED[self._kind]
            raise BadCode(place, f"awaits {short_repr(request)}", f"it may await {wanted}")
        self.waiting[k] = request


@contextmanager
def start_all(updates: Sequence[LocalUpdate], kind: type[Request | NetCall] = Request) -> Iterator[UnderWay]:
    """Let all coroutines come to their first request; in the end, give up those that have not ended."""
    under_way = UnderWay(updates, kind)
    try:
        for k in range(len(updates)):
            under_way.advance(k, None)
        yield under_way
    finally:
        for update in updates:
            update.close()


class Working:
    """The private copy of the weights under training: flat lists of tensors, and the nets they form.

    Args:
        start: a net's weights or several nets' by name.
        copy: makes the private copy of a tensor.
    """

    def __init__(self, start: Params | dict[str, Params], copy: Callable[[Tensor], Tensor]) -> None:
        self._single = isinstance(start, Params)
        nets = {"": start} if isinstance(start, Params) else start
        self.trained: list[Tensor] = []
        self.buffers: list[Tensor] = []
        self.net_of: list[int] = []  # the number of the net of each trained tensor
        self._layout: list[tuple[str, list[tuple[str, bool]], frozenset[str]]] = []
        for number, (name, w) in enumerate(nets.items()):
            for entry, tensor in w.tensors.items():
                if entry in w.train_names:
                    self.trained.append(copy(tensor).requires_grad_())
                    self.net_of.append(number)
                else:
                    self.buffers.append(copy(tensor))
            self._layout.append((name, [(e, e in w.train_names) for e in w.tensors], w.train_names))

    def assemble(self, trained: Sequence[Tensor], buffers: Sequence[Tensor] | None, live: bool) -> Any:
        """Return tensors in the structure of ``start``; without ``buffers`` the trainable entries only."""
        next_trained, next_buffer = iter(trained), iter(buffers or ())
        nets = {}
        for name, entries, train_names in self._layout:
            tensors = {
                entry: next(next_trained) if train else next(next_buffer)
                for entry, train in entries
                if train or buffers is not None
            }
            nets[name] = Params(tensors, train_names, live)
        return nets[""] if self._single else nets

    def apply_rule(
        self, rule: GradientRule, gradients: list[Tensor], trained: list[Tensor], extra: Any
    ) -> list[Tensor]:
        """Return what a rule makes of gradients, by name in the order of those that it is given."""
        now = self.assemble([t.detach() for t in trained], None, live=False)
        given = self.assemble(gradients, None, live=False)
        with inside_loss():
            found = rule(given, now, extra)
        pairs = [(found, given)] if self._single else [(found[net], given[net]) for net in given]
        return [theirs[name] for theirs, ours in pairs for name in ours]


def take_step(
    request: Request,
    work: Working,
    loss: Tensor,
    trained: list[Tensor],
    memory: list[Tensor],
    extra: Any,
    stacked: bool,
) -> None:
    """Take a step of a fit: gradient, ``before_clip``, clip, ``after_clip``, optimiser.

    Args:
        request: the fit; its rules take what there is in ``trained``.
        work: the nets that the tensors form.
        loss: of one client, or the sum of those of a stack.
        trained: the tensors under training, which change.
        memory: the optimiser's, which changes.
        extra: what the rules are handed.
        stacked: whether the tensors are those of many clients, along their first dimension.
    """
    descent = request.descent
    gradients, used = _gradients_of(loss, trained)
    with torch.no_grad():
        if request.before_clip is not None:
            gradients = work.apply_rule(request.before_clip, gradients, trained, extra)
        if descent.clip:
            gradients = _clip(gradients, work.net_of, descent.clip, stacked)
        if request.after_clip is not None:
            gradients = work.apply_rule(request.after_clip, gradients, trained, extra)
        descent.optimiser.step(trained, gradients, memory, used, descent)


def _gradients_of(loss: Tensor, trained: list[Tensor]) -> tuple[list[Tensor], list[int]]:
    """Return gradients, zeros where the loss does not depend on a tensor, and the places where it does.

    Like an optimiser that meets ``grad is None``, the update leaves the others alone.
    """
    if not trained:  # a fit that only renews buffers
        return [], []
    found = torch.autograd.grad(loss, trained, allow_unused=True)
    used = [i for i, g in enumerate(found) if g is not None]
    return [torch.zeros_like(t) if g is None else g for g, t in zip(found, trained, strict=True)], used


def recall(request: Request, memory: list[Tensor]) -> None:
    """Put what the client has kept of an optimiser into the memory of a fit.

    Raises:
        UserError: it is of other tensors.
    """
    client = request.client
    before = client._kept.get(request.phase) if client._kept is not None else None
    if before is None:
        return
    if [before[i].shape if i in before else None for i in range(len(before))] != [m.shape for m in memory]:
        raise Conflict(
            "training.optimiser_state",
            f"is kept, and the fit {request.phase!r} of client {client._id} trains other weights in round "
            f"{client._round} than before: give fits of other weights other names, client.fit(phase=...), or "
            "use --training.optimiser_state fresh",
        )
    for place, tensor in enumerate(memory):
        tensor.copy_(before[place])


def keep_memory(request: Request, memory: list[Tensor]) -> None:
    """Let the client keep the memory of a fit, which must be the fit's own."""
    if request.client._kept is not None and memory:
        request.client._kept[request.phase] = {i: m.contiguous() for i, m in enumerate(memory)}


def _clip(gradients: list[Tensor], net_of: list[int], limit: float, stacked: bool) -> list[Tensor]:
    """Scale each net's gradient to a norm of at most ``limit``, per client."""
    clipped = list(gradients)
    for net in set(net_of):
        mine = [i for i, n in enumerate(net_of) if n == net]
        if stacked:
            flat = [gradients[i].reshape(len(gradients[i]), -1) for i in mine]
            norms = torch.stack([g.norm(dim=1) for g in flat]).norm(dim=0)
        else:
            norms = torch.stack([gradients[i].norm() for i in mine]).norm()
        scale = (limit / (norms + 1e-6)).clamp(max=1.0)
        for i in mine:
            clipped[i] = (
                gradients[i] * scale.view(-1, *[1] * (gradients[i].dim() - 1))
                if stacked
                else (gradients[i] * scale)
            )
    return clipped


def scalar(loss: Tensor) -> Tensor:
    """Return the mean of a loss, which may be one value per sample."""
    return loss if loss.dim() == 0 else loss.mean()


def epoch_loss(request: Request, epoch: int) -> Callable[..., Any]:
    """Return the loss of an epoch; several take turns."""
    return request.losses[epoch % len(request.losses)]
