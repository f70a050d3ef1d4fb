"""How much privacy Gaussian noise gives over the rounds of a run, by the package dp-accounting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from rayfl.errors import Missing

GRID = 1e-3
"""Step of the grid of privacy losses. Results are upper bounds, and by it less than 0.1 % too large."""


@dataclass(frozen=True)
class Exposure:
    """How a client can take part in some rounds, as far as something is proved of it.

    Attributes:
        kind: ``certain``: in all of them, without amplification; ``poisson``: in each with a probability,
            whoever else does; ``fixed``: cohorts of one size are drawn without replacement.
        rounds: how many rounds.
        share: the probability, for ``poisson``.
        size: the size of the cohorts, for ``fixed``.
        clients: of how many they are drawn, for ``fixed``.
    """

    kind: Literal["certain", "poisson", "fixed"]
    rounds: int
    share: float = 1.0
    size: int = 0
    clients: int = 0


def neighbours_of(exposures: Sequence[Exposure]) -> str:
    """Return what the guarantee compares: federations that differ by one client."""
    if _replaces(exposures):
        return "one client replaced"
    drawn = any(each.kind == "poisson" for each in exposures)
    return "one client more or less" if drawn else "one client's changes there or not"


def epsilon_of(exposures: Sequence[Exposure], noise: float, delta: float) -> float:
    """Return epsilon of a Gaussian mechanism, to which each client adds at most the norm 1.

    Sampling amplifies as is proved: ``poisson`` for a client that is added or removed, by privacy loss
    distributions; ``fixed`` for one that is replaced, which moves the sum by 2, by Renyi divergences.

    Args:
        exposures: of all rounds so far, ``fixed`` alone or none of that kind.
        noise: the standard deviation.
        delta: the probability with which the guarantee may fail.
    """
    exposures = [each for each in exposures if each.rounds]
    if not exposures:
        return 0.0
    if not noise:
        return math.inf
    if _replaces(exposures):
        (only,) = exposures
        orders, divergences = _divergences(noise / 2, only.size, only.clients)
        accountant = _accounting().rdp.rdp_privacy_accountant
        return float(accountant.compute_epsilon(orders, divergences * only.rounds, delta)[0])
    certain = sum(each.rounds for each in exposures if each.kind == "certain")
    drawn = [each for each in exposures if each.kind == "poisson" and each.share < 1]
    certain += sum(each.rounds for each in exposures if each.kind == "poisson" and each.share == 1)
    if not drawn:  # so many Gaussians are one, exactly
        return float(_accounting().get_epsilon_gaussian(noise / math.sqrt(certain), delta))
    losses = [_losses(noise, each.share).self_compose(each.rounds) for each in drawn]
    losses += [_losses(noise / math.sqrt(certain), 1.0)] if certain else []
    whole = losses[0]
    for other in losses[1:]:
        whole = whole.compose(other)
    return float(whole.get_epsilon_for_delta(delta))


def noise_for(exposures: Sequence[Exposure], epsilon: float, delta: float) -> float:
    """Return the smallest noise that gives an epsilon, rounded up to four digits after the point."""
    low, high = 0.0, 1.0
    while epsilon_of(exposures, high, delta) > epsilon:
        low, high = high, 2 * high
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if epsilon_of(exposures, middle, delta) <= epsilon else (middle, high)
    return math.ceil(high * 1e4) / 1e4


def _replaces(exposures: Sequence[Exposure]) -> bool:
    return any(each.kind == "fixed" for each in exposures)


@cache
def _losses(noise: float, share: float) -> Any:
    """Return the distribution of the privacy loss of one round."""
    made = _accounting().pld.privacy_loss_distribution
    return made.from_gaussian_mechanism(noise, sampling_prob=share, value_discretization_interval=GRID)


@cache
def _divergences(noise: float, size: int, clients: int) -> tuple[Any, Any]:
    """Return orders and Renyi divergences of one round, of which many rounds have as many times more."""
    dp = _accounting()
    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp.SampledWithoutReplacementDpEvent(clients, size, dp.GaussianDpEvent(noise)))
    return accountant._orders, accountant._rdp  # composing anew in every round would take a second each


def _accounting() -> Any:
    """Import dp-accounting, which is slow, and needed by few."""
    try:
        import dp_accounting
        from dp_accounting.pld import privacy_loss_distribution  # noqa: F401, makes it a member
        from dp_accounting.rdp import rdp_privacy_accountant  # noqa: F401
    except ImportError:
        advice = 'install it: pip install "rayfl[privacy]"'
        raise Missing("dp-accounting", "works out epsilon, and is not installed", advice) from None
    return dp_accounting
