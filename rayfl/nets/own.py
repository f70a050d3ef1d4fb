"""Nets as a run asks for them: rayfl's, a class of the user's own, or any module by import path."""

from __future__ import annotations

import sys
import threading
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rayfl.errors import BadCode, UserError, out_of_memory
from rayfl.nets.base import Architecture
from rayfl.nets.head import check_training, kind_of, parts_differ, split_at_head, tried, with_numbers
from rayfl.nets.memory import generators
from rayfl.nets.module import Module
from rayfl.nets.split import Shape, SplitNet, drop_batch_counts
from rayfl.system.own_code import is_own

_THREAD = threading.local()
"""Has the net that this thread makes, if it makes one."""


def build(
    net: Architecture | str,
    shape: Shape = (3, 32, 32),
    classes: int = 10,
    like: Tensor | None = None,
    again: bool = False,
) -> SplitNet:
    """Build a net that fits the data, with PyTorch's random initial weights; the caller seeds them.

    Args:
        net: the net, or the import path of a class or function, see ``Module``.
        shape: of one input, such as (channels, height, width).
        classes: number of classes, at least 2.
        like: [2, *shape], two inputs to try the net with; zeros if not given. Token ids are int64, and the
            largest of the data is among them.
        again: whether this process has built it before, and seen that it can be trained.
    """
    if isinstance(net, str):
        net = Module(path=net)
    like = torch.zeros(2, *shape) if like is None else like
    net.check_inputs(like, classes)
    if not is_own_net(net):
        known: Any = net.build(shape, classes)
        return known
    try:
        built, like = _built(net, shape, classes), with_numbers(like)
        if not isinstance(built, SplitNet):
            head = net.head if isinstance(net, Module) else ""
            built = split_at_head(built, str(net), classes, like, head)
        else:
            _check_scores(built, str(net), classes, like)
        if not again:
            check_training(built, str(net), like)
            built.uncut = str(net) if parts_differ(built, like) else ""
        return built
    except Exception as error:
        if isinstance(error, UserError) or out_of_memory(error):
            raise
        raise BadCode(
            "net",
            f"{net} does not work for {classes} classes and {kind_of(like)}: it raises "
            f"{type(error).__name__}: {error}",
        ) from error


def is_own_net(net: Architecture | str) -> bool:
    """Say whether a net is the user's own or of another package, and none of rayfl's."""
    return isinstance(net, str | Module) or is_own(type(net))


def _built(net: Architecture, shape: Shape, classes: int) -> Any:
    """Return what a net of the user's own or of another package builds."""
    before = generators()["NumPy"]
    _watch_addresses()
    _THREAD.net = str(net)
    try:
        built = net.build(shape, classes)
    finally:
        _THREAD.net = ""
    if generators()["NumPy"] != before:
        raise BadCode(
            "net",
            f"{net} draws from NumPy's global generator where it is made, so that weights would differ from "
            "process to process and from run to run: draw from PyTorch's, which rayfl seeds",
        )
    return built


@cache
def _watch_addresses() -> None:
    """Begin, once in a process, to watch what reaches for an address: nothing ends that."""

    def watch(event: str, _: tuple[Any, ...]) -> None:
        if event in ("socket.getaddrinfo", "socket.connect") and (net := getattr(_THREAD, "net", "")):
            problem = f"{net} reaches for the network where it is made, and rayfl downloads nothing"
            raise BadCode("net", problem, "use files at hand")

    sys.addaudithook(watch)


def _check_scores(net: SplitNet, name: str, classes: int, like: Tensor) -> None:
    """Send two inputs through a net, and see that one score per class comes back, from its three parts."""
    scores = tried(net, name, like)
    drop_batch_counts(net)  # of lazy layers, which had none yet
    if tuple(scores.shape) != (2, classes):
        raise BadCode(
            "net", f"{name}: for 2 inputs it returns {tuple(scores.shape)}, not 2 x {classes} scores"
        )
    if odd := [entry for entry in net.state_dict() if entry.partition(".")[0] not in ("conv", "fc", "head")]:
        raise BadCode(
            "net",
            f"{name}: {odd[0]!r} is in none of the parts conv, fc and head of a SplitNet, which alone are "
            "trained: put it into one of them, or derive the net from nn.Module",
        )
    with torch.no_grad():
        parts = net.head(net.fc(net.conv(like)))
    if not torch.allclose(parts, scores, rtol=1e-4, atol=1e-5, equal_nan=True):
        raise BadCode(
            "net",
            f"{name}: its scores are not head(fc(conv(x))), as those of a SplitNet must be: put what its own "
            "forward or features does into one of the parts, or derive the net from nn.Module",
        )
