"""Refusing nets, and warning of hyper-parameters, that make no sense."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from rayfl.errors import Conflict
from rayfl.methods.base import Method
from rayfl.training.net import Net
from rayfl.training.settings import Training


def check_nets(method: Method, nets: Mapping[str, Net]) -> None:
    """Refuse clients with different nets where the method cannot work with these.

    Args:
        method: whose ``facts`` say what nets must have in common.
        nets: name -> net, at least two.
    """
    name, names = type(method).__name__, ", ".join(nets)
    if method.facts.nets == "equal":
        raise Conflict(
            "net",
            f"names {len(nets)}: {names}, and {name} combines weights of the clients' nets, so that all need "
            "the same",
            "Give one net, or choose a method for different ones",
        )
    sizes = {found: net.module.head.in_features for found, net in nets.items()}
    if method.facts.nets == "equal_features" and len(set(sizes.values())) > 1:
        found = ", ".join(f"{net} {size}" for net, size in sizes.items())
        raise Conflict(
            "net",
            f": {name} needs nets with features of one size, and their last layers have different numbers of "
            f"inputs: {found}",
        )
    if method.overrides("shared") and len({_shapes_of_shared(method, net) for net in nets.values()}) > 1:
        raise Conflict(
            "net",
            f"names {names}, and what {name} shares of each of them differs in names or shapes",
            "Give nets that are alike there, or share less by the options of the method",
        )


def _shapes_of_shared(method: Method, net: Net) -> tuple[tuple[str, torch.Size], ...]:
    """Return the names and shapes of what a method shares of a net."""
    entries = net.module.state_dict()
    shared = [name for name, module in net.modules_of.items() if method.shared(net, name, module)]
    return tuple((name, entries[name].shape) for name in shared)


def warning_of_pull(option: str, pull: float, training: Training, factor: float = 1.0) -> str | None:
    """Return a warning if steps go beyond the model towards which they are pulled.

    Args:
        option: the method's, of the pull.
        pull: its value: a step of SGD removes the share lr times pull of the distance.
        training: how clients train.
        factor: of the round's learning rate, where the pulled model has a rate of its own.
    """
    lr = training.lr * factor
    if lr * pull <= 1 or not training.optimiser.linear:
        return None
    return (
        f"{option} {pull:g} times the learning rate {lr:g} is {lr * pull:g}, above 1, so that every step "
        "goes beyond the model towards which it is pulled: choose a smaller training.lr, or a smaller "
        f"{option}"
    )
