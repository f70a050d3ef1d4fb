"""Evaluation protocols: which scores of a run make its reported metric.

A protocol belongs to an experiment, not to a method: the same method is several points better or worse when
it is scored right after local training instead of after aggregation, or at its best instead of its last
round.
"""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Literal

from rayfl.errors import Unknown
from rayfl.record.checks import EvaluationPoint
from rayfl.settings import Value, at_least
from rayfl.settings.base import classes_by_name
from rayfl.system.text import short_repr

Average = Literal["mean_clients", "pooled", "weighted"]
Choice = Literal["last", "best_val", "last_k", "window", "best_test"]
CHOSEN_ON_TEST = "chosen on test data"
"""The label of every figure whose round is ``best_test``."""
Spread = Literal["runs", "evaluations"]


class Protocol(Value, place="protocol"):
    """How the reported metric of a run is made from its per-client scores: the options of all protocols."""

    point: EvaluationPoint = "after_aggregation"
    """When models are scored: ``after_aggregation`` (after the server's step, with personal parts put back)
    or ``after_training`` (right after the client's own latest training). Clients that never train have points
    of their own: ``unseen`` (as new clients), ``unseen_adapted`` and ``unseen_control`` (after adapting to
    their images, and after doing so with steps of length 0).
    """
    view: str = "personal"
    """The view that makes the reported metric. A method without a personal model is scored by the global one.
    With ``finetune.epochs`` there is the view ``finetuned``, too.
    """
    average: Average = "mean_clients"
    """Over clients: ``mean_clients`` (mean of figures), ``pooled`` (of all samples) or ``weighted``
    (figures weighted by training samples).
    """
    choose: Choice = "last"
    """The rounds that count: the ``last`` one, the one that is best on validation data (``best_val``), the
    last ``k`` evaluations (``last_k``), or every ``step``-th round of the last ``length`` ones (``window``).
    ``best_test`` is the round with the best reported figure: the test data choose it, so it is too good,
    and every report labels it "chosen on test data".
    """
    k: Annotated[int, at_least(1)] = 5
    """Number of evaluations that ``last_k`` averages, and that the reports call "last k"."""
    length: Annotated[int, at_least(1)] = 200
    """Rounds in the window."""
    step: Annotated[int, at_least(1)] = 1
    """Rounds between two evaluations of the window, which ends with the last round."""
    choose_by: Average = "mean_clients"
    """How validation figures are averaged over clients where they choose the round."""
    trained_only: bool = False
    """Leave out clients that have not been trained up to the scored round."""
    untrained: Literal["fallback", "own"] = "fallback"
    """How clients count after aggregation of which no update has been used yet: ``fallback`` (by the global
    model or, in methods without one, as new clients do) or ``own`` (by their initial personal model).
    """
    clients: Literal["honest", "all"] = "honest"
    """Who counts where some clients attack: the ``honest`` ones alone, or ``all``."""
    spread: Spread = "runs"
    """What a printed "±" is over: ``runs`` with different seeds, or the ``evaluations`` of a single run that
    the headline averages.
    """
    patience: Annotated[int, at_least(0)] = 0
    """A run ends early after so many rounds without a better validation figure (that by which ``best_val``
    chooses); 0 for never.
    """

    @property
    def needs_validation(self) -> bool:
        """Whether the protocol is impossible without validation data."""
        return self.choose == "best_val" or self.patience > 0

    def evaluates(self, round: int, rounds: int, eval_every: int) -> bool:
        """Return whether clients are evaluated in this round.

        Every ``eval_every``-th round and the last one are evaluation rounds, and so are the rounds that the
        protocol itself averages. ``eval_every=0`` switches evaluation off altogether.

        Args:
            round: number of the round, from 0.
            rounds: rounds of the whole run.
            eval_every: rounds between two evaluations; 0 for none at all.
        """
        if eval_every == 0:
            return False
        return (round + 1) % eval_every == 0 or round == rounds - 1 or self.counts(round, rounds)

    def counts(self, round: int, rounds: int) -> bool:
        """Return whether the round is one of those that ``last_k`` or ``window`` average."""
        left = rounds - 1 - round
        if self.choose == "last_k":
            return left < self.k
        if self.choose == "window":
            return left < self.length and left % self.step == 0
        return False

    def headline_view(self, views: Collection[str]) -> str | None:
        """Return the view that makes the headline of a method with these views.

        A method without a personal model is scored by the global one or, where that is missing too, by its
        first view. A protocol about the global model has no headline for a method without one: None.
        """
        if self.view in views:
            return self.view
        if self.view == "global" or not views:
            return None
        return "global" if "global" in views else sorted(views)[0]


class Default(Protocol):
    """After aggregation, the mean over clients, in the last round."""


class FedCO2Feature(Protocol):
    """Fed-CO2 (Cai et al., NeurIPS 2023) on feature skew with validation data."""

    choose: Choice = "best_val"


class FedCO2Last(Protocol):
    """Fed-CO2 on feature skew without validation data."""


class FedCO2CIFAR(Protocol):
    """Fed-CO2 on CIFAR: pooled, over every fifth of the last 200 rounds."""

    average: Average = "pooled"
    choose: Choice = "window"
    step: int = 5
    spread: Spread = "evaluations"


class FediOS(Protocol):
    """FediOS (Gao et al., arXiv 2311.18559), its tables of personal models: after training, last 5 rounds."""

    point: EvaluationPoint = "after_training"
    choose: Choice = "last_k"


class FediOSGlobal(Protocol):
    """FediOS, its table of global models: pooled, over the last 5 rounds."""

    view: str = "global"
    average: Average = "pooled"
    choose: Choice = "last_k"


class DCPFL(Protocol):
    """DC-PFL (Tang et al., IJCAI 2024): after training, clients that have been trained.

    The paper prints no protocol; this is the one of FedGH (Yi et al., MM 2023), on which it builds.
    """

    point: EvaluationPoint = "after_training"
    trained_only: bool = True


class FDSE(Protocol):
    """FDSE (Wang et al., CVPR 2025): after training, pooled, best by validation weighted by training size."""

    point: EvaluationPoint = "after_training"
    average: Average = "pooled"
    choose: Choice = "best_val"
    choose_by: Average = "weighted"


class FDSEGlobal(FDSE):
    """FDSE for its baselines that keep no model on the client: after aggregation, by the global view."""

    point: EvaluationPoint = "after_aggregation"
    view: str = "global"


PROTOCOLS: dict[str, type[Protocol]] = classes_by_name(globals(), Protocol)
"""The protocols, by name."""


def read_protocol(config: Mapping[str, Any]) -> Protocol:
    """Return the protocol of a run's configuration.

    Raises:
        UserError: there is no such protocol, or it has other options.
    """
    path, options = _class_and_options(config)
    package, _, name = path.rpartition(".")
    if name not in PROTOCOLS or package not in ("", "rayfl.evaluation"):
        raise Unknown("protocol", f"is {short_repr(path)}: there are {', '.join(PROTOCOLS)}")
    try:
        return PROTOCOLS[name](**options)
    except TypeError as error:
        raise Unknown("protocol", f"{name} has no such option ({error})") from error


def with_protocol(config: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a run's configuration with other options of its protocol."""
    path, options = _class_and_options(config)
    return {**config, "protocol": {"class_path": path, "init_args": {**options, **changes}}}


def _class_and_options(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    found = config.get("protocol", "Default")
    return (found, {}) if isinstance(found, str) else (found["class_path"], found.get("init_args") or {})
