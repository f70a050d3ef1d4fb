"""Differential privacy of whole clients."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from rayfl.errors import Conflict
from rayfl.settings import above, at_least, below
from rayfl.training.client import Client
from rayfl.training.context import Cohort, Context
from rayfl.training.params import Params
from rayfl.training.state import State
from rayfl.training.sums import Gather, Mean, Reduction
from rayfl.transforms.accounting import Exposure, epsilon_of, neighbours_of
from rayfl.transforms.base import Change, Transform

FIRST_CLIP = 0.1
"""C_0, the first bound of an adaptive clip (Andrew et al., section 3)."""
CLIP_RATE = 0.2
"""eta_C, the rate at which the bound moves."""
BITS_NOISE = 1 / 20
"""sigma_b, the noise on the number of clients below the bound, as a share of the expected clients."""


class Private(Transform):
    """Base of the transforms that give privacy: all that a client sends is scaled down to one norm.

    They refuse what is not part of that: uploads that are no changes of weights, and BatchNorm statistics.
    """

    last = True

    noise_multiplier: Annotated[float, at_least(0)] | None = None
    """Standard deviation of the noise, as a multiple of the clip."""
    delta: Annotated[float, above(0), below(1)] = 1e-5
    """The probability with which the guarantee may fail."""

    @abstractmethod
    def spent(self, exposures: tuple[Exposure, ...]) -> float:
        """Return the epsilon of rounds in which clients can take part like this."""

    @abstractmethod
    def guarantee(self, epsilon: float, exposures: tuple[Exposure, ...]) -> str:
        """Return what is guaranteed, in a few words."""

    def check(self, context: Context, uploads: Mapping[str, Reduction], down: State, expected: float) -> None:
        """Refuse a method whose clients send what is not clipped."""
        name = type(self).__name__
        for key, how in uploads.items():
            base = down.get(how.base(key))
            if not isinstance(base, Params) or isinstance(how, Gather):
                raise Conflict(
                    "transforms",
                    f"has {name}, which covers sums of changes of weights alone, and clients of this method "
                    f"also upload {key!r}{' before the round' if how.before else ''}",
                    "choose another method, such as FedPer, Ditto or FedAvg",
                )
            if base.keys() != base.trainable().keys():
                raise Conflict(
                    "transforms",
                    f"has {name}, which covers what training changes by gradients, and {key!r} has BatchNorm "
                    "statistics",
                    "choose a net with GroupNorm or without norms, or a method that keeps BatchNorm with the "
                    "clients, such as FedBN",
                )

    def _noise(self) -> float:
        assert self.noise_multiplier is not None  # a run works it out from epsilon before it begins
        return self.noise_multiplier


class ClientDP(Private):
    """Differential privacy of clients, with noise on the server (DP-FedAvg: McMahan et al., ICLR 2018).

    A client's whole change is scaled down to the norm ``clip``, all clients count alike, Gaussian noise is
    added to the sum, and the sum is divided by the number of clients that a round has on average, so that
    nothing depends on how many have come.

    With ``clip=adaptive`` the norm follows a quantile of the clients' norms, of which they tell by a bit each
    (Andrew et al., NeurIPS 2021); the noise on the sum of these is part of the guarantee.
    """

    divisor: ClassVar[Literal["cohort", "expected"]] = "expected"

    clip: Annotated[float, above(0)] | Literal["adaptive"] = 1.0
    """Largest Euclidean norm of all that a client changes, C; or ``adaptive``."""
    epsilon: Annotated[float, above(0)] | None = None
    """The privacy that all rounds together shall have: from it follows the noise, where that is not given."""
    quantile: Annotated[float, above(0), below(1)] = 0.5
    """The share of the clients that shall be below an adaptive clip, gamma."""

    def __post_init__(self) -> None:
        if self.noise_multiplier is None and self.epsilon is None:
            raise Conflict("transforms", "has ClientDP without noise", "give epsilon or noise_multiplier")

    @property
    def sums(self) -> tuple[str, ...]:  # type: ignore[override]
        """The bits of an adaptive clip."""
        return ("below",) if self.clip == "adaptive" else ()

    def spent(self, exposures: tuple[Exposure, ...]) -> float:
        """Return the epsilon of the noise on the sum."""
        return epsilon_of(exposures, self._noise(), self.delta)

    def guarantee(self, epsilon: float, exposures: tuple[Exposure, ...]) -> str:
        """Return what is guaranteed, in a few words."""
        return f"({epsilon:.5g}, {self.delta:g})-DP of clients, {neighbours_of(exposures)}"

    def check(self, context: Context, uploads: Mapping[str, Reduction], down: State, expected: float) -> None:
        """Also refuse an adaptive clip whose bits alone need more noise than there is."""
        super().check(context, uploads, down, expected)
        if self.clip == "adaptive" and self._noise() >= 2 * BITS_NOISE * expected:
            raise Conflict(
                "transforms.clip",
                f"is adaptive, for which noise_multiplier must be below a tenth of the {expected:g} clients "
                f"of a round, and it is {self._noise():g}",
                "give a number, or sample more clients",
            )

    def init_server(self, context: Context) -> State:
        """Return the first bound of an adaptive clip."""
        return {"clip": FIRST_CLIP} if self.clip == "adaptive" else {}

    def at_client(
        self, change: Change, memory: State, client: Client, received: State
    ) -> tuple[Change, State, Mapping[str, float]]:
        """Scale the change down, and say by a bit whether that was needed."""
        clip = received.get("clip", self.clip)
        norm = norm_of(change)
        # a half to either side, so that one client more or less changes the sum by 1/2 alone (section 3)
        below = {"below": 0.5 if norm <= clip else -0.5} if self.sums else {}
        return clip_change(change, norm, clip), memory, below

    def at_server(
        self,
        combined: Change,
        memory: State,
        sums: Mapping[str, float],
        cohort: Cohort,
        generator: torch.Generator,
    ) -> tuple[Change, State]:
        """Add the noise, and move an adaptive clip."""
        noise, expected = self._noise(), cohort.expected or 1
        if self.clip != "adaptive":
            return add_noise(combined, noise * self.clip, generator), memory
        bits = BITS_NOISE * expected
        noise = noise / math.sqrt(1 - (noise / (2 * bits)) ** 2)  # theorem 1: both together give what one did
        found = add_noise(combined, noise * memory["clip"], generator)
        drawn = torch.randn((), generator=generator, dtype=torch.float64).item()
        below = (sums["below"] + bits * drawn) / expected + 0.5
        return found, {"clip": memory["clip"] * math.exp(-CLIP_RATE * (below - self.quantile))}


class LocalDP(Private):
    """Local differential privacy: each client scales its change down, and adds noise to it by itself.

    So nobody has to trust the server. The noise of one client is as large as ClientDP's for all of them.
    Sampling does not amplify: the server knows who takes part. Counted are as many uploads as a client can
    have made, each of which could have been any other.
    """

    clip: Annotated[float, above(0)] = 1.0
    """Largest Euclidean norm of all that a client changes, C."""

    def __post_init__(self) -> None:
        if self.noise_multiplier is None:
            raise Conflict("transforms", "has LocalDP without noise", "give noise_multiplier")

    def check(self, context: Context, uploads: Mapping[str, Reduction], down: State, expected: float) -> None:
        """Also refuse means by numbers of samples, which clients would tell without noise."""
        super().check(context, uploads, down, expected)
        if any(isinstance(how, Mean) and how.by != "uniform" for how in context.reductions(uploads).values()):
            problem = "weighs clients by their numbers of samples, which LocalDP does not hide"
            raise Conflict("averaging", problem, "set averaging=uniform")

    def spent(self, exposures: tuple[Exposure, ...]) -> float:
        """Return the epsilon of all uploads that one client can have made."""
        certain = Exposure("certain", sum(each.rounds for each in exposures))
        return epsilon_of((certain,), self._noise() / 2, self.delta)

    def guarantee(self, epsilon: float, exposures: tuple[Exposure, ...]) -> str:
        """Return what is guaranteed, in a few words."""
        return f"({epsilon:.5g}, {self.delta:g})-local DP of all that a client uploads"

    def at_client(
        self, change: Change, memory: State, client: Client, received: State
    ) -> tuple[Change, State, Mapping[str, float]]:
        """Scale the change down, and add the noise."""
        small = clip_change(change, norm_of(change), self.clip)
        return add_noise(small, self._noise() * self.clip, client.generator("local noise")), memory, {}


def norm_of(change: Change) -> float:
    """Return the Euclidean norm of all entries of all upload keys together."""
    return math.sqrt(sum(each.to(torch.float64).sq_norm().item() for each in change.values()))


def clip_change(change: Change, norm: float, clip: float) -> Change:
    """Return a change of this norm, scaled down to at most the clip."""
    return {key: each * (clip / norm) for key, each in change.items()} if norm > clip else change


def add_noise(change: Change, deviation: float, generator: torch.Generator) -> Change:
    """Return a change with Gaussian noise on every entry."""

    def noisy(t: Tensor) -> Tensor:
        drawn = torch.randn(t.shape, generator=generator, dtype=torch.float64)
        return (t.double() + deviation * drawn.to(t.device)).to(t.dtype)

    return {key: each.map(noisy) for key, each in change.items()} if deviation else change
