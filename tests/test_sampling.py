"""Who trains in a round: by size, in turns, by a trace, or as one's own class says."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from rayfl import UserError, resumed
from rayfl.callbacks.callback import Callback, Run
from rayfl.data import Dirichlet, Synthetic
from rayfl.errors import BadCode, Conflict, Damaged, Missing
from rayfl.evaluation import FediOS
from rayfl.evaluation.finetune import Finetune
from rayfl.evaluation.protocol import PROTOCOLS
from rayfl.methods import METHODS
from rayfl.methods.feddbe import FedDBE
from rayfl.randomness import generator
from rayfl.report.page import PAGE
from rayfl.report.summary import sentences
from rayfl.sampling import Bernoulli, BySize, CohortDraw, Cyclic, Sampling, Trace, Uniform, choose_cohort
from rayfl.settings.description import config_of
from tests.support.federations import (
    INLINE_AND_RAY,
    bytes_of_run,
    federation_from,
    records_of,
    same_bytes,
    small,
)
from tests.support.refusals import refused


@pytest.mark.parametrize("once", [False, True])
def test_uniform_is_a_random_order_cut_off(once: bool) -> None:
    for round in range(5):
        order = torch.randperm(10, generator=generator(3, "cohort", 0 if once else round)).tolist()
        assert choose_cohort(Uniform(once=once), round, [1] * 10, 0.4, seed=3, rounds=5) == sorted(order[:4])


def test_bernoulli_by_hand() -> None:
    """Of seven, 0.45 would be 3.15: the probability is not rounded as sizes are."""
    chance = torch.rand(7, generator=generator(3, "cohort", 3), dtype=torch.float64).tolist()
    for sampling, rounds in ((Bernoulli(), 4), (Bernoulli(last="all"), 5), (Bernoulli(last="all"), 4)):
        everybody = sampling.last == "all" and rounds == 4
        expected = [i for i in range(7) if chance[i] < 0.45 or everybody]
        assert choose_cohort(sampling, 3, [1] * 7, 0.45, seed=3, rounds=rounds) == expected
        assert sampling.uses_rounds == (sampling.last == "all")


@pytest.mark.parametrize(
    ("sampling", "samples", "size", "shares"),
    [
        (Bernoulli(), [5, 1], 0.6, {(): 0.49, (0,): 0.21, (1,): 0.21, (0, 1): 0.09}),
        (BySize(), [0, 4, 0, 7], 4, {(1, 3): 1}),
        # {0, 1} comes as 1/4 * 1/3 twice, {0, 2} as 1/4 * 2/3 + 1/2 * 1/2
        (BySize(), [1, 1, 2], 2, {(0, 1): 1 / 6, (0, 2): 5 / 12, (1, 2): 5 / 12}),
        (BySize(replacement=True), [1, 3], 2, {(0,): 1 / 16, (1,): 9 / 16, (0, 1): 6 / 16}),
    ],
)
def test_how_often_cohorts_come(sampling: Sampling, samples: Any, size: float, shares: Any) -> None:
    """In 2,000 rounds, to four standard deviations."""
    wanted = {"participation": size / len(samples), "seed": 1, "rounds": 2000}
    found = Counter(tuple(choose_cohort(sampling, r, samples, **wanted)) for r in range(2000))
    for chosen, p in shares.items():
        assert found[chosen] == pytest.approx(2000 * p, abs=4 * (2000 * p * (1 - p)) ** 0.5)


def test_cyclic_takes_turns() -> None:
    found = [choose_cohort(Cyclic(), r, [1] * 5, 0.4, seed=0, rounds=5) for r in range(5)]
    assert found == [[0, 1], [2, 3], [0, 4], [1, 2], [3, 4]]


# ---- traces


def trace(folder: Path, *entries: Any) -> Trace:
    path = folder / "trace.json"
    path.write_text(json.dumps(list(entries)))
    return Trace(path=str(path))


def entry(client: int, first: int, end: int | None = None) -> dict[str, int]:
    return {"client": client, "from": first} | ({} if end is None else {"to": end})


def test_a_trace_says_who_is_there(tmp_path: Path) -> None:
    entries = [entry(0, 0, 2), entry(1, 1), entry(3, 2, 3), entry(0, 3, 4)]
    sampling = trace(tmp_path, *entries)
    found = [choose_cohort(sampling, r, [1] * 4, 1.0, seed=0, rounds=5) for r in range(5)]
    assert found == [[0], [0, 1], [1, 3], [0, 1], [1]]
    some = Counter(tuple(choose_cohort(sampling, 1, [1] * 4, 0.25, seed=s, rounds=5)) for s in range(400))
    assert some.keys() == {(0,), (1,)}
    assert abs(some[(0,)] - 200) < 40
    assert sampling.digest() == trace(tmp_path, *reversed(entries)).digest()


@pytest.mark.parametrize(
    ("entries", "kind", "word"),
    [
        ([entry(0, 0, 2), entry(1, 3)], Conflict, "round 2"),
        ([entry(0, 1)], Conflict, "round 0"),
        ([entry(0, 0, 3)], Conflict, "round 3"),
        ([entry(0, 0), entry(12, 0)], Conflict, "client 12"),
        *(
            ([bad], Damaged, "an entry is")
            for bad in ({"client": 0}, entry(0, -1), {"client": True, "from": 0}, entry(0, 3, 3), 7)
        ),
        ([{**entry(0, 0), "until": 3}], Damaged, "an entry is"),
    ],
)
def test_bad_traces_are_refused_before_the_start(
    tmp_path: Path, entries: list[Any], kind: type[UserError], word: str
) -> None:
    with refused(kind, "trace.json") as caught:
        small(tmp_path / "run", sampling=trace(tmp_path, *entries)).run()
    assert word in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_trace_needs_a_file(tmp_path: Path) -> None:
    with refused(Missing, "sampling.path"):
        Trace()  # type: ignore[call-arg]
    (tmp_path / "text.json").write_text("{}")
    for name, problem in (("none.json", "No such file"), ("text.json", "must be a list")):
        with pytest.raises(UserError, match=problem):
            small(tmp_path / "run", sampling=Trace(path=str(tmp_path / name))).run()


def test_another_trace_is_another_run_and_the_next_run_reads_it_anew(tmp_path: Path) -> None:
    """As in a notebook, where the file has been changed meanwhile."""
    sampling = trace(tmp_path, entry(0, 0), entry(1, 0))
    small(tmp_path / "run", sampling=sampling, rounds=1).run()
    trace(tmp_path, entry(0, 0), entry(1, 0), entry(2, 1))  # in the round that has been, the same
    again = resumed(tmp_path / "run", {"rounds": 2})
    with refused(Conflict, "trace"):
        again.run()
    trace(tmp_path, entry(2, 0))
    small(tmp_path / "second", sampling=sampling, rounds=1, participation=1.0).run()
    assert [record["cohort"] for record in records_of(tmp_path / "second")] == [[2]]


# ---- classes of one's own


class Evens(Sampling):
    def choose(self, draw: CohortDraw) -> Any:
        return [i for i in range(len(draw.samples)) if i % 2 == 0]


def test_a_class_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it returns is checked."""
    result = small(tmp_path / "run", sampling=Evens(), rounds=2).run()
    assert list(result.rounds["cohort"]) == [6] * 2
    made = federation_from(["--sampling", "tests.test_sampling.Evens"])
    assert type(made.sampling) is Evens
    for what in ([0, 12], [-1], [3, 3]):
        monkeypatch.setattr(Evens, "choose", lambda *_, what=what: what)
        with refused(BadCode, "Evens.choose") as caught:
            small(tmp_path / "bad", sampling=Evens()).run()
        assert f"returns {what}" in str(caught.value)
        assert not (tmp_path / "bad").exists()


class Spends(Sampling):
    def choose(self, draw: CohortDraw) -> Any:
        chosen = sorted(range(len(draw.samples)), key=lambda i: -draw.samples[i])[: draw.size]
        draw.samples[:] = [0] * len(draw.samples)
        return chosen


def test_what_a_class_makes_of_the_samples_does_not_last() -> None:
    samples = [4, 2, 3, 1]
    for round in range(2):
        assert choose_cohort(Spends(), round, samples, 0.5, seed=0, rounds=2) == [0, 2]
    assert samples == [4, 2, 3, 1]


class Draws(Sampling):
    def choose(self, draw: CohortDraw) -> Any:
        return torch.randperm(len(draw.samples))[: draw.size].tolist()


class Remembers(Sampling):
    last: ClassVar[list[int]] = [0]

    def choose(self, draw: CohortDraw) -> Any:
        self.last.append(self.last[-1] + 1)
        return [self.last[-1]]


@pytest.mark.parametrize("sampling", [Draws(), Remembers()], ids=str)
def test_a_class_neither_remembers_nor_draws_elsewhere(tmp_path: Path, sampling: Any) -> None:
    with refused(BadCode, f"{type(sampling).__name__}.choose"):
        small(tmp_path / "run", sampling=sampling).run()
    assert not (tmp_path / "run").exists()


# ---- runs


@pytest.mark.parametrize(
    "settings",
    [
        {"sampling": BySize(replacement=True)},
        {"sampling": Uniform(once=True)},
        {"data": Synthetic(train=120, test=60, partition=Dirichlet(alpha=0.1, min_samples=0)), "clients": 40},
    ],
)
def test_runs_go_on_as_if_they_had_not_stopped(tmp_path: Path, settings: dict[str, Any]) -> None:
    same_bytes(tmp_path, resumed_after=1, rounds=2, checkpoint_every=1, **settings)


ALONE = {"sampling": Bernoulli(), "participation": 0.1, "seed": 3}
"""Twelve clients of whom 2, 0, 0 and 1 take part in the rounds."""


def test_a_round_without_clients_passes(tmp_path: Path) -> None:
    """The server's model stays, so all scores do; the end and the page say how many such rounds there are."""
    result = small(tmp_path / "run", **ALONE, eval_points="both", loggers=["tensorboard"]).run()
    assert list(result.rounds["cohort"]) == [2, 0, 0, 1]
    first, second, third, _ = records_of(tmp_path / "run")
    for record in (second, third):
        assert record["cohort"] == record["steps"] == record["loss"] == []
        assert record["up"] == record["down"] == {}
        assert record["evaluation"] == first["evaluation"]
        assert record["untrained"] == first["untrained"]
    assert result.summary["empty"] == 2
    sentence = "Rounds without clients: 2."
    assert sentence in sentences(result.summary)
    assert sentence in (tmp_path / "run" / PAGE).read_text()


class Absent(Sampling):
    """All clients, but nobody in the first round."""

    def choose(self, draw: CohortDraw) -> Any:
        return range(len(draw.samples)) if draw.round else []


@pytest.mark.parametrize("name", ["DCPFL", "FedDBE"])
def test_rounds_begin_with_the_first_one_that_has_clients(tmp_path: Path, name: str) -> None:
    """DC-PFL's protocol counts trained clients alone; FedDBE's clients upload before the first round."""
    protocol = PROTOCOLS["DCPFL" if name == "DCPFL" else "Default"]()
    settings = {"method": METHODS[name](), "protocol": protocol, "finetune": Finetune(epochs=1)}
    result = small(tmp_path, sampling=Absent(), rounds=2, **settings).run()
    assert list(result.rounds["cohort"]) == [0, 12]
    assert result.summary["headline"]["figure"] is not None


def test_a_last_round_of_all_comes_once(tmp_path: Path) -> None:
    result = small(tmp_path / "run", **ALONE | {"sampling": Bernoulli(last="all"), "rounds": 3}).run()
    assert list(result.rounds["cohort"]) == [2, 0, 12]
    with refused(Conflict, "rounds"):
        resumed(tmp_path / "run", {"rounds": 4}).run()


def test_clients_drawn_once_alone_upload_before_the_first_round(tmp_path: Path) -> None:
    small(tmp_path, method=FedDBE(), sampling=Uniform(once=True), rounds=2).run()
    first, second = records_of(tmp_path)
    assert len(first["cohort"]) == 6
    assert first["before_round"]["clients"] == first["cohort"] == second["cohort"]


NAMED: list[int] = []
"""Clients that a callback has named."""


class Named(Sampling):
    """The clients that were named, else the last ones."""

    def choose(self, draw: CohortDraw) -> Any:
        return NAMED or range(len(draw.samples) - draw.size, len(draw.samples))


class Names(Callback):
    """Names two clients before the first round."""

    def start(self, run: Run, round: int) -> bool:
        NAMED[:] = [0, 1]
        return False


def test_a_sampling_that_a_callback_tells_does_not_go_on_without_it(tmp_path: Path) -> None:
    federation = small(tmp_path / "run", sampling=Named(), rounds=2)
    federation.run([Names()])
    NAMED.clear()
    before = bytes_of_run(tmp_path / "run")
    with refused(BadCode, "sampling"):
        resumed(tmp_path / "run", {"rounds": 3}).run()
    assert bytes_of_run(tmp_path / "run") == before


LATEST = ("after_training", "personal", "test")


def test_who_waits_keeps_the_score_of_its_last_training(tmp_path: Path) -> None:
    """With all that are there in a round, as with fewer: clients 0 to 5 train in round 0, 6 to 11 later."""
    sampling = trace(tmp_path, *(entry(i, 0, 1) if i < 6 else entry(i, 1) for i in range(12)))
    settings: dict[str, Any] = {"sampling": sampling, "protocol": FediOS(), "eval_every": 2, "rounds": 2}
    all_there, fewer = (
        small(tmp_path / str(share), participation=share, **settings).run().history.scores[LATEST].score
        for share in (1.0, 0.99)
    )
    assert not np.isnan(all_there).any()
    np.testing.assert_array_equal(all_there, fewer)


def test_the_same_bytes_on_actors(tmp_path: Path, kept_actors: None) -> None:
    """Also over a stop before rounds without clients."""
    same_bytes(tmp_path, *INLINE_AND_RAY, resumed_after=2, rounds=4, **ALONE)


def test_sampling_is_recorded(tmp_path: Path) -> None:
    made = federation_from(["--sampling", "BySize", "--sampling.replacement", "true"])
    recorded = config_of(made)["sampling"]
    assert recorded == {"class_path": "rayfl.sampling.BySize", "init_args": {"replacement": True}}
    small(tmp_path / "run", sampling=Cyclic(), rounds=1).run()
    text = (tmp_path / "run" / "config.yaml").read_text()
    (tmp_path / "run" / "config.yaml").write_text(text.replace("Cyclic", "BySize"))
    again = resumed(tmp_path / "run", {"rounds": 2})
    with refused(Conflict, "sampling"):
        again.run()
