"""Faults drawn from seeds change no byte; and the simulator finds what is broken on purpose."""

from collections import Counter
from typing import Any

import pytest

from rayfl.engine.travel import RoundResult
from rayfl.record.folder import RunFolder
from tests.support import faults
from tests.support.faults import SimulatedDisk, Undisturbed, simulate

FEW, MANY = 20, 200


@pytest.fixture(scope="module")
def expected() -> Undisturbed:
    return faults.undisturbed()


@pytest.mark.parametrize("seeds", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_faults_change_no_byte(expected: Undisturbed, seeds: int) -> None:
    kinds: Counter[str] = Counter()
    for seed in range(seeds):
        happened, wrong = simulate(seed, expected)
        assert not wrong, f"{wrong}\nsee it again: python -m tests.support.faults --seed {seed}"
        kinds.update(map(faults.kind_of, happened))
    assert kinds.keys() >= {"driver", "power", "process", "processes", "cluster", "full", "stopped"}
    assert seeds < MANY or min(kinds.values()) >= 10


def test_a_seed_does_the_same_again(expected: Undisturbed) -> None:
    def told() -> list[str]:
        return [text.split("--resume")[0] for text in simulate(1, expected)[0]]

    assert told() == told() != []


def leave_out(*arguments: Any) -> None:
    """Do nothing."""


def keep_lines(folder: RunFolder, round: int) -> None:
    """Leave the lines of rounds that are run again."""


@pytest.mark.parametrize(
    ("owner", "name", "instead"),
    [
        (SimulatedDisk, "sync", lambda disk, file: file.flush()),
        (SimulatedDisk, "sync_folder", leave_out),
        (RoundResult, "sort", leave_out),
        (RunFolder, "truncate", keep_lines),
        (RunFolder, "sync", leave_out),
    ],
    ids=["files not synced", "names not synced", "order of arrival", "lines left", "lines not synced"],
)
def test_what_is_broken_on_purpose_is_found(
    expected: Undisturbed, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, instead: Any
) -> None:
    monkeypatch.setattr(owner, name, instead)
    assert any(simulate(seed, expected)[1] for seed in range(MANY))
