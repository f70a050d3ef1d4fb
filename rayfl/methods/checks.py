"""Refusing hyper-parameters that make no sense."""

from __future__ import annotations

from collections.abc import Mapping

from rayfl.errors import Conflict
from rayfl.training.net import Net
from rayfl.training.settings import Training


def check_equal_features(method: str, nets: Mapping[str, Net]) -> None:
    """Refuse nets whose features, the inputs of their last layers, are not of one size."""
    sizes = {name: net.module.head.in_features for name, net in nets.items()}
    if len(set(sizes.values())) > 1:
        found = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise Conflict(
            "net",
            f": {method} compares the features of all clients, so that their nets need features of one size, "
            f"and the nets' last layers have different numbers of inputs: {found}",
        )


def caution_of_pull(option: str, pull: float, training: Training, factor: float = 1.0) -> str | None:
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
