"""Faults drawn from seeds change no byte; and the simulator finds what is broken on purpose."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rayfl import Inline
from rayfl.engine.travel import RoundResult
from rayfl.errors import Conflict
from rayfl.methods import Cohort, FedAvg
from rayfl.record.folder import RunFolder
from rayfl.training import State
from tests.support import faults
from tests.support.faults import Simulated, SimulatedDisk, Undisturbed, World, simulate
from tests.support.refusals import refused

SEEDS = 200


@pytest.fixture(scope="module")
def expected() -> Undisturbed:
    return faults.undisturbed()


def test_faults_change_no_byte(expected: Undisturbed) -> None:
    kinds: Counter[str] = Counter()
    for seed in range(SEEDS):
        happened, wrong = simulate(seed, expected)
        assert not wrong, f"{wrong}\nsee it again: python -m tests.support.faults --seed {seed}"
        kinds.update(text.split(" at ")[0].split(":")[0] for text in happened)
    assert kinds.keys() >= {"driver", "power", "process", "processes", "cluster", "full", "stopped"}
    assert min(kinds.values()) >= 10


def test_a_seed_does_the_same_again(expected: Undisturbed) -> None:
    def told(seed: int) -> list[str]:
        return [text.split("--resume")[0] for text in simulate(seed, expected)[0]]

    assert [told(seed) for seed in range(4)] == [told(seed) for seed in range(4)]


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
    assert any(simulate(seed, expected)[1] for seed in range(SEEDS))


def test_a_seed_that_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lived(world: Any, folder: Path) -> str:
        return "wrong" if world.dice.random() < 0.5 else ""

    monkeypatch.setattr(faults, "_lived", lived)
    monkeypatch.setattr(faults, "bytes_of", lambda folder: {})
    monkeypatch.setattr(faults, "undisturbed", Undisturbed)
    assert faults.main(["--seeds", "20", "--jobs", "1"]) == 1
    failed = [
        line.split(":")[0].split()[1] for line in capsys.readouterr().out.splitlines() if "wrong" in line
    ]
    assert 0 < len(failed) < 20
    assert faults.main(["--seed", failed[0]]) == 1
    assert capsys.readouterr().out.strip() == "wrong"


class BreaksInRoundOne(FedAvg):
    """What its server makes of the second round is no number."""

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        return {"weights": up["weights"] * (torch.nan if cohort.round == 1 else 1.0)}


@pytest.mark.parametrize("simulated", [True, False])
def test_a_step_that_fails_leaves_no_record_of_its_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simulated: bool
) -> None:
    monkeypatch.setattr(faults, "_known", {})  # of another method
    world = World(0)
    world.left = 0  # no other faults
    engine = Simulated() if simulated else Inline()
    vars(engine)["world"] = world
    federation = replace(faults.small(tmp_path / "run", engine), method=BreaksInRoundOne())
    with refused(Conflict, "BreaksInRoundOne.aggregate"):
        federation.run()
    for name in ("metrics.jsonl", "engine.jsonl"):
        lines = (tmp_path / "run" / name).read_text().splitlines()
        assert [json.loads(line)["round"] for line in lines] == [0]
