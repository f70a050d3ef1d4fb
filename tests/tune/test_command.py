"""The command line of sweeps, with trials that run one after the other in this process."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

pytest.importorskip("ray")

from rayfl.config.command_line import parse_with_options
from rayfl.config.table_file import Table, changes_of
from rayfl.errors import UserError
from rayfl.evaluation.result import Result
from rayfl.federation import Federation
from rayfl.tune.command import _new, _resumed, check, main, parser
from rayfl.tune.schedule import begin
from rayfl.tune.space import Space
from rayfl.tune.sweep import Ended
from rayfl.tune.trial import federation_of
from rayfl.tune.trials import Sweep, Trials
from tests.support.sweeps import write


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Trials]:
    """What the command line has asked Ray Tune for."""
    asked: list[Trials] = []

    def run(trials: Trials, *others: object) -> bool:
        asked.append(trials)
        for job in trials.jobs.values():
            federation_of(job, {}).run()
        return True

    monkeypatch.setattr("rayfl.tune.sweep.run", run)
    return asked


@pytest.mark.parametrize(("metric", "best"), [("loss", 0.2), ("accuracy", 0.2), ("loss\nmode: max", 1e-7)])
def test_the_best_point_is_that_of_the_mode(
    tmp_path: Path, runs: list[Trials], metric: str, best: float
) -> None:
    space = write(tmp_path, metric=f"metric: {metric}", search="search: {training.lr: [0.0000001, 0.2]}")
    assert main([space, "--output", str(tmp_path / "out"), "--rounds", "2", "--data.noise", "0.3"]) == 0
    (trials,) = runs
    assert trials.sweep.mode == ("min" if metric == "loss" else "max")
    losses = []
    for job in trials.jobs.values():
        run = Result.load(job.folder)
        losses.append(run.history.scores["after_aggregation", "personal", "val"].loss[-1].mean())
    assert losses[1] < losses[0] - 0.01
    assert Table.load(tmp_path / "out" / "best.yaml").base["training.lr"] == best


def sweep_of(folder: Path, **changes: str) -> Sweep:
    space = Space.load(write(folder, **changes))
    return Sweep.of(space, space.points())


def test_the_trials_of_a_sweep(tmp_path: Path) -> None:
    """Every point with every seed, seeds last; and what population based training may change."""
    sweep = sweep_of(tmp_path, seeds="seeds: [5, 6]")
    jobs = sweep.jobs(tmp_path)
    assert list(jobs) == ["000-seed-5", "001-seed-5", "000-seed-6", "001-seed-6"]
    assert [(job.row, job.column, job.seed, job.rounds) for job in jobs.values()] == [
        (f"mu={mu}", "base", seed, 3) for seed in (5, 6) for mu in (0, 1)
    ]
    assert jobs["001-seed-6"].folder == tmp_path / "trials" / "001-mu=1" / "seed-6"
    assert Trials(sweep, tmp_path, jobs).of_point(1) == [jobs["001-seed-5"], jobs["001-seed-6"]]
    assert (sweep.metric, sweep.mode, sweep.best, sweep.dimensions) == ("accuracy", "max", True, [])
    population = sweep_of(tmp_path, scheduler="scheduler: pbt")
    assert [d.key for d in population.dimensions] == ["method.mu"]
    trials = Trials(population, tmp_path, population.jobs(tmp_path))
    assert {name: trials.values(name) for name in trials.jobs} == {
        "000-seed-0": {"method.mu": 0.0},
        "001-seed-0": {"method.mu": 1.0},
    }
    population.save(tmp_path)
    assert Sweep.load(tmp_path) == population
    changed = {"method.mu": 0.8}
    begin(trials.jobs["001-seed-0"].folder, "001-seed-0", changed, copied=True)
    assert trials.values("001-seed-0") == changed, "a resumed sweep changes what the trial has by now"


def asked(function: Any, *arguments: str) -> Any:
    given = parse_with_options(parser(), arguments)
    console = () if function is _resumed else (Console(),)
    return function(given, changes_of(given, "sweep"), *console)


def test_the_command_line_wins_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    space = write(
        tmp_path,
        samples="samples: 2",
        at_once="at_once: 3",
        seeds="seeds: [4]",
        search="search: {method.mu: {uniform: [0, 1]}}",
        title="title: Another",
    )
    sweep, output = asked(_new, space)
    assert (len(sweep.points), sweep.seeds, sweep.at_once) == (2, (4,), 3)
    assert (sweep.points[0].rounds, output) == (3, Path("runs", "tiny"))
    more = ("--samples", "3", "--seeds", "2", "--at_once", "1", "--rounds", "9", "--output", "here")
    sweep, output = asked(_new, space, *more, "--data", "CIFAR10", "--data.root", "there")
    assert (len(sweep.points), sweep.seeds, sweep.at_once) == (3, (4, 0), 1)
    assert (sweep.points[0].rounds, output) == (9, Path("here"))
    assert {point.settings["data.root"] for point in sweep.points} == {str(tmp_path / "there")}


def test_options_without_an_effect_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--samples has no effect, because .*space\.yaml draws no values"):
        asked(_new, write(tmp_path), "--samples", "3", "--output", str(tmp_path / "new"))
    sweep_of(tmp_path, scheduler="scheduler: pbt").save(tmp_path)
    with pytest.raises(UserError, match="--at_once has no effect: scheduler pbt"):
        asked(_resumed, "--resume", str(tmp_path), "--at_once", "2")


def test_a_sweep_has_so_many_trials_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayfl.tune.command.MOST_TRIALS", 4)
    assert len(asked(_new, write(tmp_path), "--seeds", "2", "--output", str(tmp_path / "new"))[0].seeds) == 2
    with pytest.raises(UserError, match="2 points with 3 seeds are 6 trials, more than 4"):
        asked(_new, write(tmp_path), "--seeds", "3", "--output", str(tmp_path / "new"))


def test_what_may_change_when_a_sweep_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep_of(tmp_path, at_once="at_once: 3").save(tmp_path)
    folder = ("--resume", str(tmp_path))
    assert asked(_resumed, *folder).at_once == 3
    found = asked(_resumed, *folder, "--at_once", "2", "--checkpoint_every", "7")
    assert found.at_once == 2
    assert {int(point.settings["checkpoint_every"]) for point in found.points} == {7}
    for option in ("rounds", "seeds", "samples", "output"):
        with pytest.raises(UserError, match=f"remove --{option}"):
            asked(_resumed, *folder, f"--{option}", "2")
    assert main([*folder, "--at_once", "-1"]) == 2
    assert "--at_once is -1: it must be at least 1" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"--training\.lr: with --resume only engine, "):
        asked(_resumed, *folder, "--training.lr", "0.5")
    with pytest.raises(UserError, match="give one of the two"):
        asked(_resumed, *folder, write(tmp_path))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"more": "{eval_every: 0}"}, "eval_every is 0"),
        ({"more": "{eval_every: 2}", "scheduler": "scheduler: {name: pbt, interval: 3}"}, "multiple of"),
        ({"more": "{data.val_fraction: 0.0}"}, "the data have no validation split"),
        ({"search": "search: {net: [LeNet, CNNC]}"}, "the point net=CNNC cannot work: there is no net"),
        (
            {"search": "search: {net: [LeNet, AlexNet]}"},
            "the point net=AlexNet cannot work: net AlexNet needs",
        ),
        ({"scheduler": "scheduler: asha", "search": "search: {clients: [2, 3]}"}, "scheduler asha stops"),
        ({"scheduler": "scheduler: median", "search": "search: {clients: [2, 3]}"}, "median stops"),
        ({"more": "{eval_every: 2}", "scheduler": "scheduler: {name: pbt, interval: 4}"}, None),
        ({"more": "{data.val_fraction: 0.0}", "best": "best: false"}, None),
        ({"search": "search: {clients: [2, 3]}"}, None),
        ({"scheduler": "scheduler: median"}, None),
    ],
)
def test_sweeps_that_cannot_choose_are_refused(
    tmp_path: Path, changes: dict[str, str], says: str | None
) -> None:
    sweep = sweep_of(tmp_path, **changes)
    if says is None:
        check(sweep)
        return
    with pytest.raises(UserError, match=says):
        check(sweep)


def test_a_sweep_is_checked_with_the_data_of_its_first_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = []

    def federated_data(federation: Any) -> None:
        seeds.append(federation.seed)
        raise UserError("enough")

    monkeypatch.setattr("rayfl.federation.Federation.federated_data", federated_data)
    with pytest.raises(UserError, match="enough"):
        check(sweep_of(tmp_path, seeds="seeds: [5, 6]"))
    assert seeds == [5]


def test_one_client_with_validation_data_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Federation.federated_data

    def without_the_first(federation: Federation) -> Any:
        data = read(federation)
        first, *others = data.clients
        return replace(data, clients=(replace(first, val=first.val[:0]), *others))

    monkeypatch.setattr(Federation, "federated_data", without_the_first)
    check(sweep_of(tmp_path))


@pytest.mark.parametrize(
    ("complete", "failed", "best", "code"),
    [(True, False, True, 0), (True, True, True, 1), (False, False, True, 130), (True, False, False, 0)],
)
def test_exit_codes_and_the_files_of_a_sweep(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    complete: bool,
    failed: bool,
    best: bool,
    code: int,
) -> None:
    """A sweep that was stopped writes nothing, and one without a best point writes none."""

    def run(trials: Trials, ended: Ended, *others: object) -> bool:
        first, other = trials.jobs
        if failed:
            ended.note(other, "failed", "for a reason")
        if not (output / "trials").exists():
            federation_of(trials.jobs[first], {}).run()
        return complete

    monkeypatch.setattr("rayfl.tune.sweep.run", run)
    output = tmp_path / "out"
    space = write(tmp_path, best=f"best: {str(best).lower()}", more="{rounds: 1}")
    assert main([space, "--output", str(output)]) == code
    said = capsys.readouterr()
    assert ("best by validation" in said.out) is (complete and best)
    assert ("for a reason" in said.err) is failed
    assert ("go on with --resume" in said.out) is not complete
    written = {path.name for path in output.iterdir()} & {"points.csv", "best.yaml", "sensitivity.png"}
    assert written == ({"points.csv"} if complete else set()) | (
        {"best.yaml"} if complete and best else set()
    )
