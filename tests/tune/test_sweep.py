"""Sweeps on Ray Tune: searchers, schedulers, placement, equal bytes, kills, stops, failures."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from rayfl.commands import tune as command
from rayfl.commands.tune import main
from rayfl.errors import Conflict, InUse
from rayfl.jobs.table_file import Table
from rayfl.run import main as run_main
from rayfl.running.result import Result
from rayfl.tune.space import Space
from tests.support.federations import bytes_of_run, federation_from
from tests.support.processes import wait_until
from tests.support.refusals import refused, told
from tests.support.sweeps import write

ray: Any = pytest.importorskip("ray")

from rayfl.tune import sweep  # noqa: E402

pytestmark = pytest.mark.usefixtures("ray_runtime")


def trial(output: Path, value: str) -> Path:
    (found,) = output.glob(f"trials/*={value}/seed-0")
    return found


def alone(folder: Path, output: Path) -> Path:
    """Run the configuration of a trial by itself, in this process."""
    config = yaml.safe_load((folder / "config.yaml").read_text())
    threads = config["engine"]["init_args"]["threads"]
    config["engine"] = {"class_path": "rayfl.engine.Inline", "init_args": {"threads": threads}}
    path = output.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(config))
    federation_from(["--config", str(path), "--output", str(output)]).run()
    return output


def untouched(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {f: (f.stat().st_mtime_ns, f.read_bytes()) for f in folder.rglob("*") if f.is_file()}


@pytest.mark.slow
def test_trials_on_actors_have_the_bytes_of_one_alone(tmp_path: Path, ray_runtime) -> None:
    more = f"{{engine: Ray, engine.actors: 2, engine.cpus_per_actor: 0.5, engine.address: '{ray_runtime}'}}"
    output = tmp_path / "out"
    assert main([write(tmp_path, more=more), "--output", str(output)]) == 0
    assert bytes_of_run(trial(output, "1.0")) == bytes_of_run(alone(trial(output, "1.0"), tmp_path / "alone"))


def test_what_ray_tune_is_asked_for(tmp_path: Path, ray_runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws, trials at once of a searcher, seeds beside a scheduler, and checkpoints of what pauses."""
    asked: dict[str, Any] = {}
    fitted = SimpleNamespace(fit=lambda: [])
    monkeypatch.setattr(sweep.tune, "Tuner", lambda trial, **given: asked.update(given) or fitted)
    search = "search: {clients: [2, 3], training.lr: {uniform: [0.1, 1]}}"
    for options, draws, at_once, seeds, kept in (
        ("{scheduler: asha, at_once: 2}", 3, None, {"grid_search": [4, 5]}, None),
        ("{searcher: optuna, at_once: 2}", 3 * 2, 2, None, None),
        ("{scheduler: hyperband}", 3, None, {"grid_search": [4, 5]}, 1),
    ):
        space = write(tmp_path, search=search, some="{samples: 3, seeds: [4, 5]}", options=options)
        with pytest.raises(KeyboardInterrupt):  # no trial is over
            sweep.run(space, tmp_path / str(kept) / str(at_once), address=ray_runtime)
        config = asked["tune_config"]
        assert (config.num_samples, config.max_concurrent_trials, config.mode) == (draws, at_once, "max")
        assert asked["param_space"].pop("seed", None) == seeds
        assert asked["param_space"].keys() == {"search", "clients", "training.lr"}
        assert asked["run_config"].checkpoint_config.num_to_keep == kept


def test_too_few_processors(tmp_path: Path, capsys, ray_runtime) -> None:
    more = f"{{engine: Ray, engine.actors: 50, engine.cpus_per_actor: 1, engine.address: '{ray_runtime}'}}"
    assert main([write(tmp_path, more=more), "--output", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "a trial can never be placed" in said
    assert "which take 50 CPUs" in said
    assert "room for 4 of 50 actors" in said


def test_trials_in_one_process_wait_for_hosts_that_may_come(
    tmp_path: Path, capsys, ray_runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what none of those that have come has room for ends the sweep."""
    monkeypatch.setattr(sweep, "ROOM_CHECK", 0.0)
    monkeypatch.setattr(sweep, "wait_seconds", lambda asked: 0.1 if asked == "auto" else 0.0)
    given = [write(tmp_path, more="{engine.threads: 50}"), "--output", str(tmp_path / "out")]
    assert main([*given, "--address", ray_runtime]) == 2
    assert "no trial can be placed on the hosts that are there" in capsys.readouterr().err


def test_a_sweep_whose_ray_is_gone_says_so_in_a_line(
    tmp_path: Path, capsys, ray_runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "PULSE", 0.0)
    monkeypatch.setattr(sweep.Cluster, "dead_process", lambda self: "Ray's GCS at 192.0.2.1:6379")
    output = str(tmp_path / "sweep")
    assert main([write(tmp_path), "--output", output, "--address", ray_runtime]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    says = "Ray's GCS at 192.0.2.1:6379 is gone, and with it all trials: go on with --resume"
    assert line == f"rayfl: error: {says} {output}"


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_ctrl_c_ends_what_comes_after_a_sweep(
    tmp_path: Path, capsys, ray_runtime, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(
        sweep.SweepWatcher, "on_step_end", lambda *others, **more: signal.raise_signal(number)
    )
    given = [write(tmp_path), "--output", str(tmp_path / "out"), "--address", ray_runtime]
    try:
        with pytest.raises(KeyboardInterrupt) if number == signal.SIGINT else nullcontext():
            assert command.run_sweep(command.parser().read(given)) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    said = capsys.readouterr().out
    assert " of 2 trials are over, so no point is the best; go on with --resume" in said
    assert not (tmp_path / "out" / "best.yaml").exists()


SEARCHED = """
search: {training.lr: {loguniform: [0.001, 0.5]}, method.mu: {choice: [0.0, 1.0]},
  training.batch_size: {quniform: [8, 24, 8]}}
searcher: optuna
"""


def calls(space: Space, path: Path, trials: int) -> Iterator[dict[str, Any] | None]:
    """Call a searcher as a session of Ray Tune does, trial by trial; yield after each call, points first."""
    searcher = sweep.searcher_of(space, 1, path)
    domains = {d.key: sweep.search_domain(d) for d in space.search[0]}
    searcher.set_search_properties("score", "max", {"search": 0, **domains})
    for number in range(trials):
        trial = f"{number}-{path.stat().st_size}"  # each session has other names
        point = searcher.suggest(trial)
        yield point
        for round in (1, 2):
            searcher.on_trial_result(trial, {"round": round, "score": point["training.lr"] * round})
            yield None
        searcher.on_trial_complete(trial, {"score": 2 * point["training.lr"]} if number % 2 else None)
        yield None


@pytest.mark.parametrize("seeds", [(0,), (3, 4)])
def test_a_searcher_draws_the_same_points_after_any_stop(tmp_path: Path, seeds: tuple[int, ...]) -> None:
    """Beyond the ten points that Optuna draws at random, and each with every seed."""
    pytest.importorskip("optuna")
    space = replace(Space.load(write(tmp_path, search=SEARCHED)), seeds=seeds)
    trials = 13 * len(seeds)
    whole = [*filter(None, calls(space, tmp_path / "whole", trials))]
    assert [point["seed"] for point in whole] == [*seeds] * 13
    assert len({point["training.lr"] for point in whole}) == 13
    assert {point["training.batch_size"] % 8 for point in whole} == {0}
    for stop in (2, 4 * trials - 5, 4 * trials - 4):
        path = tmp_path / f"stopped-{stop}"
        for _ in islice(calls(space, path, trials), stop):
            pass
        with path.open("a") as file:
            file.write('{"torn')
        assert [*filter(None, calls(space, path, trials))] == whole
        assert path.read_bytes() == (tmp_path / "whole").read_bytes()
    path.write_text(json.dumps({"point": {"training.lr": 0.1}}) + "\n")
    with refused(Conflict, "searcher"):
        next(calls(space, path, trials))


@pytest.mark.slow
def test_a_searcher_goes_on_where_it_was_killed(tmp_path: Path, capsys, ray_runtime) -> None:
    """The same points and bytes as without a kill."""
    pytest.importorskip("optuna")
    more = "{rounds: 2, clients: 2, data.train: 60, data.test: 20}"
    space = write(tmp_path, search=SEARCHED, samples="samples: 4", more=more)
    at, killed, whole = ["--at_once", "1", "--address", ray_runtime], tmp_path / "killed", tmp_path / "whole"
    start = [sys.executable, "-m", "rayfl.tune", space, "--output", str(killed), *at]
    process = subprocess.Popen(start, stdout=subprocess.DEVNULL)
    wait_until(lambda: len([*killed.glob("trials/*/seed-0/summary.json")]) >= 2, process)
    process.kill()
    process.wait()
    done = [path.parent for path in killed.glob("trials/*/seed-0/summary.json")]
    before = {folder: untouched(folder) for folder in done}
    assert main(["--resume", str(killed), *at]) == 0
    assert {folder: untouched(folder) for folder in done} == before
    assert main([space, "--output", str(whole), *at]) == 0
    assert (killed / "points.csv").read_bytes() == (whole / "points.csv").read_bytes()
    names = sorted(str(path.relative_to(whole)) for path in whole.glob("trials/*/seed-0"))
    assert names == sorted(str(path.relative_to(killed)) for path in killed.glob("trials/*/seed-0"))
    for name in names:
        assert bytes_of_run(killed / name) == bytes_of_run(whole / name)


@pytest.fixture(scope="module")
def sweep_with_failure(tmp_path_factory: pytest.TempPathFactory, ray_runtime: str) -> tuple[list[str], Path]:
    """The command of a sweep, and what it leaves: two searches, successive halving, one trial after another.

    Ray Tune makes each search by itself, here with its own files for TensorBoard.
    """
    folder = tmp_path_factory.mktemp("sweep")
    space = write(
        folder,
        search="search: [{training.lr: [0.1, 0.0000001]}, {training.lr: [1.0e+30]}]",
        scheduler="scheduler: {name: asha, grace_period: 1, reduction_factor: 2}",
        more="{loggers: [tensorboard]}",
    )
    output = folder / "out"
    given = [space, "--output", str(output), "--at_once", "1", "--address", ray_runtime]
    numbers = (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    assert main([*given, "--data.noise", "0.3"]) == 1
    assert [signal.getsignal(number) for number in numbers] == before, "Ray Tune leaves its own behind"
    return given, output


def test_a_bad_trial_is_stopped_and_the_best_point_feeds_a_table(
    tmp_path: Path, sweep_with_failure: tuple[list[str], Path]
) -> None:
    """A failure does not end the other trials."""
    _, output = sweep_with_failure
    assert Result.load(trial(output, "1e-07")).summary["completed"] == 1
    marks = [trial(output, lr).with_name(f"{trial(output, lr).name}.stopped") for lr in ("1e-07", "0.1")]
    assert [mark.exists() for mark in marks] == [True, False]
    assert len([*(output / "tune").glob("*/*/events.*")]) == 3
    best = output / "best.yaml"
    table = Table.load(best)
    assert table.rows["Ditto"].settings["method"] == "Ditto"
    assert table.base["training.lr"] == 0.1
    assert run_main(["--config", str(best), "--engine", "Inline", "--output", str(tmp_path / "one")]) == 0
    assert bytes_of_run(tmp_path / "one") == bytes_of_run(trial(output, "0.1"))


def test_a_sweep_goes_on_with_what_failed(
    sweep_with_failure: tuple[list[str], Path], ray_runtime: str, capsys
) -> None:
    given, output = sweep_with_failure
    first, stopped = untouched(trial(output, "0.1")), untouched(trial(output, "1e-07"))
    with told(InUse, output):
        assert main(given) == 2
    assert main(["--resume", str(output), "--address", ray_runtime]) == 1
    said = capsys.readouterr()
    ends = ["0.1, base, seed 0: finished", "1e-07, base, seed 0: stopped after 1 rounds"]
    assert all(f"lr={end}" in said.out for end in ends), "the scheduler has seen both again"
    assert "lr=1e+30, base, seed 0: FAILED: client 0 in round 0" in said.out
    assert "lr=1e+30, base, seed 0: client 0 in round 0" in said.err, "it was tried again"
    assert (untouched(trial(output, "0.1")), untouched(trial(output, "1e-07"))) == (first, stopped)


@pytest.mark.slow
def test_hyperband_pauses_trials_and_goes_on_with_them(tmp_path: Path, capsys, ray_runtime) -> None:
    """What has run to its end has the bytes of the same configuration alone."""
    output = tmp_path / "out"
    search = "search: {training.lr: {loguniform: [0.0001, 0.3]}}"
    scheduler = "{scheduler: {name: hyperband, reduction_factor: 2}, samples: 4}"
    space = write(tmp_path, search=search, scheduler=scheduler, more="{rounds: 4, checkpoint_every: 100}")
    assert main([space, "--output", str(output), "--address", ray_runtime]) == 0
    said = capsys.readouterr().out
    assert said.count(": finished") + said.count(": stopped after") == 4
    assert "0/4 trials finished" in said
    whole = [path.parent for path in output.glob("trials/*/seed-0/summary.json")]
    done = next(folder for folder in whole if Result.load(folder).summary["completed"] == 4)
    assert bytes_of_run(done) == bytes_of_run(alone(done, tmp_path / "alone"))


def test_points_that_cannot_work_are_refused(tmp_path: Path, capsys) -> None:
    output = tmp_path / "out"
    batch = ["--net", "CNNB", "--training.batch_size", "1"]
    assert main([write(tmp_path), *batch, "--output", str(output)]) == 2
    assert "training.batch_size is 1" in capsys.readouterr().err
    assert not output.exists()
