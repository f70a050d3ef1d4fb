"""How a process sets a federation up: its nets and its method, and trials of both before the start."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from rayfl.data import Dataset, FederatedData
from rayfl.engine.base import Plan
from rayfl.engine.guard import guard_call
from rayfl.engine.process import exits_as_errors
from rayfl.engine.travel import Download, check_state, check_views, first_server_state
from rayfl.errors import BadCode, Conflict, UserError, error_context
from rayfl.evaluation.score import answer_at_once
from rayfl.methods import Method
from rayfl.methods.base import further_nets
from rayfl.methods.checks import check_nets
from rayfl.nets import Architecture, SplitNet, build
from rayfl.system.text import short_repr
from rayfl.training.client import Client, Fitted
from rayfl.training.context import Context
from rayfl.training.examples import Examples
from rayfl.training.loop import fit_loop
from rayfl.training.net import Net
from rayfl.training.optimisers import SGD
from rayfl.training.stacked import are_close
from rayfl.training.state import State, as_tensor

TRIED_STEPS = 3
"""Training steps to try with a net of the user's own."""


def set_up(plan: Plan, data: FederatedData) -> tuple[list[Net], Context]:
    """Build the plan's nets and those that the method has besides, and let the method prepare for the first.

    Returns:
        The nets in the plan's order, for the data's input shape and classes: client k's is number k modulo
        their count. Equal ones share a net. And the facts of the run.

    Raises:
        UserError: there is no such net, or the method cannot work with these.
    """
    method, names = plan.method, [str(net) for net in plan.nets]
    nets: dict[str, Net] = {}
    like = _largest_tokens(data.dataset)
    for name, net in zip(names, plan.nets, strict=True):
        if name not in nets:
            nets[name] = _build_net(net, plan, data.dataset, like)
    if len(nets) > 1:
        check_nets(method, nets)
    further: dict[str, Net] = {}
    for option, further_net in further_nets(method).items():
        name = names[0] if further_net is None else str(further_net)
        with error_context(f"method.{option}", f"method.{option}"):
            further[option] = nets.get(name) or _build_net(further_net or name, plan, data.dataset, like)
    first = nets[names[0]]
    for module, making in _modules_of(method, first).items():
        if module in further:
            raise BadCode(
                f"{type(method).__name__}.modules",
                f"has {module!r}, which is an option",
                "choose another name",
            )
        further[module] = _new_net(plan, partial(_wrap_module, making))
    context = Context(
        net=first,
        initial=first.initial(plan.seed),
        shared=frozenset(n for n, module in first.modules_of.items() if method.shared(first, n, module)),
        population=data.seen,
        seed=plan.seed,
        averaging=plan.averaging or method.facts.averaging,
        nets=further,
        nets_differ=len(nets) > 1,
        total_rounds=plan.rounds if method.facts.uses_rounds else None,
    )
    context = replace(context, prepared=method.prepare(context))
    found = [nets[name] for name in names]
    if plan.frozen not in (None, frozen_digest(plan, found, context)):
        problem = "has other frozen weights, or files, here than where the run was started"
        raise Conflict("net", problem, "give every host the same files, and leave them as they are")
    return found, context


def frozen_digest(plan: Plan, nets: Sequence[Net], context: Context) -> str:
    """Return a digest of what is frozen in the nets, also further ones, and of their files; else nothing."""
    each = [net.frozen_digest() for net in dict.fromkeys([*nets, *context.nets.values()])]
    each += plan.digests().values()
    return hashlib.sha256(repr(each).encode()).hexdigest()[:16] if any(each) else ""


def _build_net(net: Architecture | str, plan: Plan, dataset: Dataset, like: torch.Tensor | None) -> Net:
    making = partial(build, net, dataset.shape, dataset.outputs, like)
    return _new_net(plan, making, again=partial(making, again=True))


def _new_net(plan: Plan, making: Callable[[], SplitNet], again: Callable[[], SplitNet] | None = None) -> Net:
    bfloat16 = plan.training.precision == "bfloat16"
    return Net(making, seed=plan.seed, dtype=plan.training.dtype, bfloat16=bfloat16, again=again)


def _modules_of(method: Method, net: Net) -> Mapping[str, Callable[[], nn.Module]]:
    """Return what builds the method's own modules, by name."""
    found = method.modules(net)
    if isinstance(found, Mapping) and all(callable(each) for each in found.values()):
        return found
    raise BadCode(
        f"{type(method).__name__}.modules",
        f"returns {short_repr(found)}",
        "it must be name -> what builds a module, as in {'projection': lambda: nn.Linear(8, 4)}",
    )


def _wrap_module(making: Callable[[], nn.Module]) -> SplitNet:
    """Return a module of a method's own in the form of a net."""
    if not isinstance(made := making(), nn.Module):
        raise BadCode("modules", f": what is to build a module has returned {short_repr(made)}")
    return SplitNet(made, nn.Sequential(), nn.Identity())  # type: ignore[arg-type]


def try_prepare(method: Method, context: Context) -> None:
    """Let a method prepare a second time; refuse one that draws, changes what it is handed, or differs."""
    call = "prepare"
    with guard_call(method, torch.device("cpu"), call, "tried before the start", initial=[context.initial]):
        again = method.prepare(replace(context, prepared=None))
    if not _are_equal(context.prepared, again):
        raise BadCode(
            f"{type(method).__name__}.{call}",
            "returns other values when it is called again, as each process of the run does",
            "draw with context.generator(purpose, 0)",
        )


def _are_equal(one: Any, other: Any) -> bool:
    """Return whether two nests hold the same numbers, texts and arrays, and objects of the same classes."""
    pairs = [pytree.tree_flatten(each) for each in (one, other)]
    if pairs[0][1] != pairs[1][1]:
        return False
    for a, b in zip(*(leaves for leaves, _ in pairs), strict=True):
        if isinstance(a, torch.Tensor | np.ndarray) and isinstance(b, torch.Tensor | np.ndarray):
            same = np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)
        elif is_dataclass(a) and type(a) is type(b):
            same = _are_equal(vars(a), vars(b))
        else:
            same = a == b or a != a != b if isinstance(a, int | float | str) else type(a) is type(b)
        if not same:
            return False
    return True


def _largest_tokens(dataset: Dataset) -> torch.Tensor | None:
    """Return two inputs of the largest token id, int64 [2, ...]; None if inputs are no token ids."""
    return None if dataset.largest is None else torch.full((2, *dataset.shape), dataset.largest)


@contextmanager
def ignore_trial_errors() -> Iterator[None]:
    """Ignore an exception that ends the body, except a ``UserError``: only the run may have what it needs."""
    try:
        with exits_as_errors(), torch.random.fork_rng(devices=[]):
            yield
    except Exception as error:
        if isinstance(error, UserError):
            raise


def try_scores(
    method: Method, context: Context, net: Net, plan: Plan, data: FederatedData
) -> dict[str, torch.Tensor]:
    """Send, and score a sample twice with initial weights, to find simple mistakes of the method.

    Args:
        method: of the run.
        context: the facts of the run.
        net: client 0's.
        plan: for the settings that every client has.
        data: the first sample is scored.

    Returns:
        The scores by view; empty if only the run itself can compute them.

    Raises:
        UserError: the server's state is no state, ``scores`` has other views than the method declares, or
            ``download`` has side effects.
    """
    examples = Examples(data.dataset, torch.device("cpu"), plan.training.dtype, channels_last=False)
    counts, train = as_tensor(data.label_matrix("train"))[0], as_tensor(data.clients[0].train)
    found = None
    with ignore_trial_errors(), torch.no_grad():
        initial = net.initial(plan.seed)
        training, seed = plan.training, plan.seed
        client = Client(
            0, net, initial, examples, train, counts, training, seed, 0, nets=context.nets, context=context
        )
        name = f"{type(method).__name__}.init_server"
        server = check_state(name, first_server_state(method, context), "before the first round")
        down, state = _try_download(method, context, server), method.init_client(client)
        x, _ = examples.batch(torch.zeros(2, dtype=torch.int64))
        found = dict(answer_at_once(method.scores(client, state, down, x)))
    if found is None:
        return {}
    check_views(method, found)
    inside = data.dataset.targets.shape[1:] if data.dataset.task.kind == "positions" else ()
    wanted = [2, *inside, data.dataset.outputs]
    for view, scores in found.items():
        shape = list(scores.shape) if isinstance(scores, torch.Tensor) else short_repr(scores)
        if shape != wanted:
            raise BadCode(
                f"{type(method).__name__}.scores",
                f"returns {shape} for {view!r} of two inputs",
                f"it must be a tensor of scores [B, outputs], here {wanted}",
            )
    return found


def try_steps(net: Net, name: str, plan: Plan, data: FederatedData) -> None:
    """Refuse a net whose steps depend on earlier steps by more than its weights and buffers.

    One copy takes a few steps. Another takes the same, and before each a step on other samples.

    Args:
        net: the net.
        name: of the net, for the error.
        plan: for the settings that every client has.
        data: each step takes two of the first samples.
    """
    examples = Examples(data.dataset, torch.device("cpu"), plan.training.dtype, channels_last=False)
    counts, w = torch.ones(data.dataset.classes), net.initial(plan.seed)
    first, other = net.rebuilt(), net.rebuilt()  # without changes that a method makes to its nets

    def step(net: Net, number: int) -> Fitted:
        samples = torch.arange(2 * number, 2 * number + 2) % len(data.dataset.labels)
        client = Client(number, net, w, examples, samples, counts, plan.training, plan.seed, 0)
        fit = client.fit(w, client.loss, optimiser=SGD(), lr=0.1, epochs=1, batch_size=2)
        return fit_loop(fit)  # type: ignore[arg-type]

    with ignore_trial_errors():
        for number in range(TRIED_STEPS):
            alone = step(first, number)
            step(other, TRIED_STEPS + number)
            if not are_close(step(other, number), alone, 1e-6):
                raise BadCode(
                    "net",
                    f"{name} goes by what it has seen in other steps, as in a list or a function, which "
                    "clients do not keep: write it into a buffer of floats (self.register_buffer)",
                )
            w = alone.weights


def _try_download(method: Method, context: Context, server: State) -> State:
    """Return what client 0 would receive; refuse a hook that draws or changes its arguments."""
    found: list[State] = []
    for call, given in (
        ("download", (server,)),
        ("download_for", (server, 0)),
        ("server_metrics", (context, server)),
    ):
        with guard_call(method, torch.device("cpu"), call, "tried before the start", server=[server]):
            found.append(getattr(method, call)(*given))
    return Download(found[0], {0: found[1]}).for_client(0)
