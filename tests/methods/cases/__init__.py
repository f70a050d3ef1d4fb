"""What tests know of each method, one file per method: a new one needs a file here and touches no other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from rayfl.methods import METHODS
from rayfl.methods.partialfed import layers_of
from rayfl.nets import FFA
from rayfl.training.net import Net, is_batch_norm

Numbers = dict[str, int | None]
"""Key of a payload, or of a part of the net -> how many numbers it has; None where that is no constant."""


def same(count: int) -> tuple[Numbers, Numbers]:
    """Traffic of a method whose clients send and receive as many weights."""
    return {"weights": count}, {"weights": count}


@dataclass(frozen=True, kw_only=True)
class Cases:
    """What a method is and does, as far as it differs from method to method.

    Attributes:
        traffic: the numbers (down, up) of a client, by the numbers in the net's parts, the classes that the
            client owns, and the number of clients, all of which have taken part; by default those of FedAvg.
        bad: (option, value) that is refused; at least one for every option that is no yes or no.
        changing: options with which the state of every client changes in every round.
        stateless: whether clients keep nothing.
        has_global: whether there is a global model to be scored.
        without_loss: whether a view's scores are not logits.
        averaging: the default.
        predicts_with_own: whether clients predict with their own models alone, not with what a server has
            made of several.
        averages: options with which the server's ``weights`` are means with the weights of ``averaging``;
            None where there are no such means.
        by_sign: parts of the names of state that goes by the sign of an update, which rounding decides where
            the gradient is 0.
        steady: options with which rounding does not grow from step to step.
        buffered: options with which it has a rule for buffers of any kind.
        apart: patterns of entries that ``shared`` keeps and that travel under a key of their own.
        net: the net that the method needs; None for any.
        rounds: that it takes to learn handwriting.
        adapts: whether it adapts to clients that never train.
    """

    traffic: Callable[[dict[str, int], int, int], tuple[Numbers, Numbers]] = lambda k, owned, n: same(
        k["theta"] + k["s"]
    )
    bad: Sequence[tuple[str, Any]] = ()
    changing: dict[str, Any] = field(default_factory=dict)
    stateless: bool = False
    has_global: bool = False
    without_loss: bool = False
    averaging: Literal["samples", "uniform"] = "samples"
    predicts_with_own: bool = True
    averages: dict[str, Any] | None = field(default_factory=dict)
    by_sign: Sequence[str] = ()
    steady: dict[str, Any] = field(default_factory=dict)
    buffered: dict[str, Any] = field(default_factory=dict)
    apart: Sequence[str] = ()
    net: str | None = None
    rounds: int = 3
    adapts: bool = False


def counts(net: Net) -> dict[str, int]:
    """Return how many numbers the parts of a net have, for ``traffic``."""
    w = net.initial(0)
    s = sum(t.numel() for n, t in w.items() if n not in w.train_names)
    b = sum(w[n].numel() for n, m in net.modules_of.items() if is_batch_norm(m) and n in w.train_names)
    stack = w.select(net.names("fc_stack", "head").__contains__).numel()
    return {
        "theta": w.trainable().numel(),
        "s": s,
        "b": b,
        "H": w["head.weight"].numel() + w["head.bias"].numel(),
        "d": w["head.weight"].shape[1],
        "C": w["head.weight"].shape[0],
        "stack": stack,
        "matrices": sum(t.dim() > 1 for t in w.trainable().values()),
        "layers": len(layers_of(net)),
        "ffa": sum(w[n].numel() for n, m in net.modules_of.items() if isinstance(m, FFA)),
        "dse": sum(t.numel() for n, t in w.trainable().items() if ".dse_" in n),
        "dse_s": sum(t.numel() for n, t in w.items() if ".dse_" in n and n not in w.train_names),
    }


def _cases_of(name: str) -> Cases:
    cases: Cases = import_module(f"{__name__}.{name.lower()}").CASES
    return cases


CASES = {name: _cases_of(name) for name in METHODS}


def net_of(name: str, net: Any) -> Any:
    """Return a net for the method of this name: ``net``, if it can work with any."""
    return CASES[name].net or net
