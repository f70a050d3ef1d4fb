"""The command line of sweeps, up to their start."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")


from rayfl.commands.tune import _new_sweep, _resumed_sweep, main, parser
from rayfl.errors import BadData, BadValue, Conflict, Unknown, UserError
from rayfl.federation import Federation, federation_of
from rayfl.jobs.table_file import changes_of
from rayfl.tune.space import Space
from rayfl.tune.sweep import check_sweep, run
from tests.support.refusals import refused, told
from tests.support.sweeps import write


def space_of(folder: Path, **changes: str) -> Space:
    return Space.load(write(folder, **changes))


def test_the_trials_of_a_point(tmp_path: Path) -> None:
    """And what a sweep keeps of its space."""
    space = space_of(tmp_path, scheduler="scheduler: {name: asha, grace_period: 2}")
    job = space.point_of({"search": 0, "method.mu": 1}).trial_job(6, tmp_path)
    assert (job.row, job.column, job.seed, job.rounds) == ("mu=1", "base", 6, 3)
    assert job.folder == tmp_path / "trials" / "mu=1.0" / "seed-6"
    space.save(tmp_path)
    assert Space.load_from_folder(tmp_path) == space


def asked(function: Any, *arguments: str) -> Any:
    given = parser().read(arguments)
    return function(given, changes_of(given, "sweep"))


def test_the_command_line_wins_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    search = "search: {method.mu: {uniform: [0, 1]}}"
    space = write(tmp_path, search=search, some="{samples: 2, at_once: 3, seeds: [4], title: Another}")
    sweep, output = asked(_new_sweep, space)
    assert (sweep.point_count, sweep.seeds, sweep.at_once) == (2, (4,), 3)
    assert (sweep.example_points()[0].rounds, output) == (3, Path("runs", "tiny"))
    more = ("--samples", "3", "--seeds", "2", "--at_once", "1", "--rounds", "9", "--output", "here")
    sweep, output = asked(_new_sweep, space, *more, "--data", "CIFAR10", "--data.root", "there")
    assert (sweep.point_count, sweep.seeds, sweep.at_once) == (3, (4, 0), 1)
    assert (sweep.example_points()[0].rounds, output) == (9, Path("here"))
    assert {point.settings["data.root"] for point in sweep.example_points()} == {str(tmp_path / "there")}


def test_a_sweep_has_so_many_trials_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayfl.tune.space.MOST_TRIALS", 4)
    space = write(tmp_path)
    assert len(asked(_new_sweep, space, "--seeds", "2")[0].seeds) == 2
    with refused(Conflict, "search"):
        asked(_new_sweep, space, "--seeds", "3")
    with refused(Conflict, "samples"):  # it draws none
        asked(_new_sweep, space, "--samples", "3")
    assert main([write(tmp_path), "--list"]) == 0


def test_what_may_change_when_a_sweep_goes_on(tmp_path: Path) -> None:
    space = space_of(tmp_path, at_once="at_once: 3")
    space.save(tmp_path)
    folder = ("--resume", str(tmp_path))
    assert asked(_resumed_sweep, *folder)[0].at_once == 3
    more = ("--at_once", "2", "--checkpoint_every", "7", "--engine.threads", "3")
    found, _ = asked(_resumed_sweep, *folder, *more)
    assert found.at_once == 2
    assert {int(point.settings["checkpoint_every"]) for point in found.example_points()} == {7}
    assert {int(point.settings["engine.threads"]) for point in found.example_points()} == {3}
    assert found.result_settings == space.result_settings
    other = space_of(tmp_path, search="search: {method.mu: [0.0, 2.0]}")
    with refused(Conflict, tmp_path):
        run(other, tmp_path, resume=True)
    for option in ("rounds", "seeds", "samples", "output"):
        with refused(Conflict, "resume"):
            asked(_resumed_sweep, *folder, f"--{option}", "2")
    with told(BadValue, "at_once"):
        assert main([*folder, "--at_once", "-1"]) == 2


def test_schedulers_know_the_rounds_of_the_longest_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayfl.tune.sweep._run_trials", lambda space, output, rounds, *others: rounds)
    assert run(space_of(tmp_path, search="search: {rounds: [2, 4, 3]}"), tmp_path / "out") == 4


@pytest.mark.parametrize(
    ("changes", "kind", "place"),
    [
        ({"more": "{eval_every: 0}"}, Conflict, "eval_every"),
        ({"more": "{protocol.choose: best_test}"}, Conflict, "protocol.choose"),
        ({"more": "{data.val_fraction: 0.0}"}, Conflict, "best"),
        ({"search": "search: {net: [LeNet, CNNC]}"}, Unknown, "net"),
        ({"search": "search: {net: [LeNet, AlexNet]}"}, Conflict, "net"),
        ({"more": "{data.val_fraction: 0.0}", "best": "best: false"}, None, ""),
        ({"search": "search: {clients: [2, 3]}", "scheduler": "scheduler: median"}, None, ""),
    ],
)
def test_sweeps_that_cannot_choose_are_refused(
    tmp_path: Path, changes: dict[str, str], kind: type[UserError] | None, place: str
) -> None:
    space = space_of(tmp_path, **changes)
    with refused(kind, place) if kind else nullcontext():
        check_sweep(space, space.example_points())


def test_a_sweep_is_checked_with_the_data_of_its_first_seed(tmp_path: Path, monkeypatch: Any) -> None:
    def federated_data(federation: Federation) -> None:
        raise BadData(str(federation.seed))

    space = space_of(tmp_path, seeds="seeds: [5, 6]")
    monkeypatch.setattr(Federation, "federated_data", federated_data)
    with refused(BadData, "the point mu=0 cannot work") as caught:
        check_sweep(space, space.example_points())
    assert str(caught.value).endswith("5")


def test_one_client_with_validation_data_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = space_of(tmp_path)
    points = space.example_points()
    data = federation_of(points[0].settings).federated_data()
    first, *others = data.clients
    some = replace(data, clients=(replace(first, val=first.val[:0]), *others))
    monkeypatch.setattr(Federation, "federated_data", lambda federation: some)
    check_sweep(space, points)
