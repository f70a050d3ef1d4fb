"""Evaluation protocols: which scores of a run make its headline accuracy.

A protocol belongs to an experiment, not to a method: the same method is several points better or worse when
it is scored right after local training instead of after aggregation, or at its best instead of its last
round.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Literal

from rayfl.errors import UserError
from rayfl.record.checks import Point

Average = Literal["mean_clients", "pooled", "weighted"]
Choice = Literal["last", "best_val", "last_k", "window"]
Spread = Literal["runs", "evaluations"]


@dataclass(frozen=True)
class Protocol:
    """How the headline accuracy of a run is made from its per-client scores.

    Attributes:
        name: the name under which a configuration asks for it.
        point: when models are scored: ``after_aggregation`` (after the server's step, with personal parts put
            back) or ``after_training`` (right after the client's own latest training). Clients that never
            train have points of their own: ``unseen`` (as newcomers), ``unseen_adapted`` and
            ``unseen_control`` (after adapting to their images, and after doing so with steps of length 0).
        view: the view that makes the headline, see :meth:`headline_view`.
        average: over clients: ``mean_clients`` (mean of accuracies), ``pooled`` (correct over samples) or
            ``weighted`` (accuracies weighted by training samples).
        choose: the rounds that count: the ``last`` one, the one that is best on validation data
            (``best_val``), the last ``k`` evaluations (``last_k``), or every ``step``-th round of the last
            ``length`` ones (``window``). The test data never choose.
        k: number of evaluations that ``last_k`` averages, and that the reports call "last k".
        length: rounds in the window.
        step: rounds between two evaluations of the window, which ends with the last round.
        choose_by: how validation accuracies are averaged over clients where they choose the round.
        trained_only: leave out clients that have not been trained up to the scored round.
        spread: what a printed "±" is over: ``runs`` with different seeds, or the ``evaluations`` of a single
            run that the headline averages.
        patience: a run ends early after so many rounds without a better validation accuracy (that by which
            ``best_val`` chooses); 0 for never.
    """

    name: str
    point: Point = "after_aggregation"
    view: str = "personal"
    average: Average = "mean_clients"
    choose: Choice = "last"
    k: int = 5
    length: int = 0
    step: int = 1
    choose_by: Average = "mean_clients"
    trained_only: bool = False
    spread: Spread = "runs"
    patience: int = 0

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


# Fed-CO2: Cai et al., NeurIPS 2023. FediOS: Gao et al., arXiv 2311.18559. DC-PFL: Tang et al., IJCAI 2024
# (prints no protocol; this is the one of FedGH, Yi et al., MM 2023, on which it builds). FDSE: Wang et al.,
# CVPR 2025; its baselines that keep no model on the client are scored by the global one, hence `fdse_global`.
PROTOCOLS: dict[str, Protocol] = {
    p.name: p
    for p in (
        Protocol("default"),
        Protocol("fedco2_feature", choose="best_val"),
        Protocol("fedco2_last"),
        Protocol("fedco2_cifar", average="pooled", choose="window", length=200, step=5, spread="evaluations"),
        Protocol("fedios", point="after_training", choose="last_k"),
        Protocol("fedios_global", view="global", average="pooled", choose="last_k"),
        Protocol("dcpfl", point="after_training", trained_only=True),
        Protocol("fdse", point="after_training", average="pooled", choose="best_val", choose_by="weighted"),
        Protocol("fdse_global", view="global", average="pooled", choose="best_val", choose_by="weighted"),
    )
}


# Words that change a protocol, as in "fdse+weighted".
WORDS: dict[str, dict[str, Any]] = {
    "after_aggregation": {"point": "after_aggregation"},
    "after_training": {"point": "after_training"},
    "unseen": {"point": "unseen"},
    "unseen_adapted": {"point": "unseen_adapted"},
    "unseen_control": {"point": "unseen_control"},
    "personal": {"view": "personal"},
    "global": {"view": "global"},
    "mean_clients": {"average": "mean_clients"},
    "pooled": {"average": "pooled"},
    "weighted": {"average": "weighted"},
    "last": {"choose": "last"},
    "best_val": {"choose": "best_val"},
    "trained_only": {"trained_only": True},
}


def protocol(name: str) -> Protocol:
    """Return the protocol of that name.

    Args:
        name: one of `PROTOCOLS`, or such a name followed by words that change it, joined by ``+``: those of
            `WORDS`, ``last_<k>`` or ``every_<step>_of_last_<length>`` for the rounds that count, and
            ``patience_<k>``. Words alone change ``default``.

    Raises:
        UserError: a part of the name is unknown, or two words say the same thing differently.
    """
    first, *words = name.split("+")
    if first not in PROTOCOLS:
        first, words = "default", [first, *words]
    changes: dict[str, Any] = {}
    said: dict[str, str] = {}  # field -> the word that has set it
    for word in words:
        meaning = _meaning(name, word)
        for key in meaning:
            if said.setdefault(key, word) != word:
                both = f"{said[key]!r} and {word!r}"
                raise UserError(f"protocol {name!r}: {both} contradict each other: leave one of them out")
        changes |= meaning
    return replace(PROTOCOLS[first], name=name, **changes)


def _meaning(name: str, word: str) -> dict[str, Any]:
    """Return the fields of `Protocol` that a word sets."""
    if word in WORDS:
        return WORDS[word]
    if found := re.fullmatch(r"last_([1-9]\d*)", word):
        return {"choose": "last_k", "k": int(found[1])}
    if found := re.fullmatch(r"every_([1-9]\d*)_of_last_([1-9]\d*)", word):
        return {"choose": "window", "step": int(found[1]), "length": int(found[2])}
    if found := re.fullmatch(r"patience_([1-9]\d*)", word):
        return {"patience": int(found[1])}
    whole = "" if word == name else f"{name!r}: "
    raise UserError(
        f"protocol {whole}{word!r} is unknown; choose one of {', '.join(PROTOCOLS)}; or change one with "
        f"words joined by +: {', '.join(WORDS)}, last_5, every_5_of_last_200, patience_100"
    )
