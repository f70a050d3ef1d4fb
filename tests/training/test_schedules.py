"""Schedules against closed forms, and what is refused of them before a run starts."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from rayfl import Callback, Training, UserError, resumed
from rayfl.errors import BadCode
from rayfl.testing.checks import TINY
from rayfl.training import Adam, Constant, Cosine, Exponential, Schedule, Steps
from tests.support.federations import small
from tests.support.refusals import refused


class Halving(Schedule):
    """One of a user's own."""

    def factor(self, round: int, rounds: int) -> float:
        return 1 / (1 + round)


class Broken(Schedule):
    """One that is what its option says in round 2."""

    value: Any = 0.0

    def factor(self, round: int, rounds: int) -> float:
        return self.value if round == 2 else 1.0


class Unsaid(Schedule):
    """One that goes by the number of rounds, and does not say so."""

    def factor(self, round: int, rounds: int) -> float:
        return 1 - round / rounds


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (Constant(), [1, 1, 1, 1]),
        (Constant(warmup=3), [1 / 4, 2 / 4, 3 / 4, 1]),
        (Exponential(decay=0.5), [1, 1 / 2, 1 / 4, 1 / 8]),
        (Exponential(decay=0.5, warmup=1), [1 / 2, 1 / 2, 1 / 4, 1 / 8]),
        (Steps(at_rounds=[1, 3], by=0.1), [1, 0.1, 0.1, 0.01]),
        (Cosine(), [1, (1 + 0.5**0.5) / 2, 1 / 2, (1 - 0.5**0.5) / 2]),
        (Cosine(warmup=2, end=0.5), [1 / 3, 2 / 3, 1, 3 / 4]),
        (Halving(), [1, 1 / 2, 1 / 3, 1 / 4]),
    ],
)
def test_factors(schedule: Schedule, factors: list[float]) -> None:
    training = Training(lr=0.3, schedule=schedule)
    schedule.check(4)
    for round, factor in enumerate(factors):
        assert schedule.at(round, 4) == pytest.approx(factor, rel=1e-12)
        assert training.lr_at(round, 4) == pytest.approx(0.3 * factor, rel=1e-12)


def test_the_bits_are_those_of_lr_decay() -> None:
    training = Training(lr=0.1, schedule=Exponential(decay=0.998))
    for round in (0, 1, 7, 999):
        assert training.lr_at(round, 1000) == 0.1 * 0.998**round


class Draws(Schedule):
    def factor(self, round: int, rounds: int) -> float:
        return float(torch.rand(())) + 0.1


def test_rates_that_are_none_are_refused(tmp_path: Path) -> None:
    """And those that go by the number of rounds and do not say so, or that are drawn."""
    for schedule in (*(Broken(value=value) for value in (0.0, -1.0, math.nan, math.inf)), Unsaid(), Draws()):
        with refused(BadCode, "training.schedule") as caught:
            schedule.check(4)
        assert not isinstance(schedule, Broken) or "factor(2, 4)" in str(caught.value)
    with refused(BadCode, "training.schedule"):
        small(tmp_path / "run", training=Training(schedule=Draws())).run()
    assert not (tmp_path / "run").exists()


def test_a_warm_up_that_never_ends_is_told(tmp_path: Path) -> None:
    run = small(tmp_path / "run", training=Training(schedule=Constant(warmup=4)))
    (warning,) = [text for text in run.check(run.federated_data())[0] if "warmup" in text]
    assert warning == "training.schedule.warmup is 4, and the run ends before, after 4 rounds"


def test_a_run_with_a_schedule_goes_on(tmp_path: Path) -> None:
    """To the bytes of one that was never stopped, and with no other number of rounds."""
    training = Training(schedule=Cosine(warmup=1), optimiser=Adam(), lr=0.01, batch_size=20)
    small(tmp_path / "whole", training=training, rounds=2, net=TINY).run()

    class Stopping(Callback):
        def after_round(self, run: Any, record: Any) -> bool:
            run.asked.set()
            return False

    small(tmp_path / "half", training=training, rounds=2, net=TINY).run([Stopping()])
    with pytest.raises(UserError, match="rounds is 3"):
        resumed(tmp_path / "half", {"rounds": 3}).run()
    resumed(tmp_path / "half").run()
    one, other = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "half"))
    assert one == other
