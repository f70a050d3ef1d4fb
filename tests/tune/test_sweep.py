"""Sweeps on Ray Tune: every shipped space, placement, equal bytes, kills, stops, copies, failures."""

import json
import signal
import subprocess
import sys
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayfl import UserError, resumed
from rayfl.config.command_line import parse_with_options
from rayfl.config.parser import federation_from
from rayfl.config.table_file import Table, layered, options
from rayfl.evaluation.result import Result
from rayfl.jobs.progress import TableProgress
from rayfl.record.checkpoint import Checkpoints
from rayfl.run import main as run_main
from rayfl.tune import command
from rayfl.tune.command import main
from rayfl.tune.outcome import Best, points_table, result_of, write_all
from rayfl.tune.space import Space
from tests.support.federations import bytes_of_run
from tests.support.processes import rounds_of, wait_until
from tests.support.sweeps import SPACES, small, write

ray: Any = pytest.importorskip("ray")

from rayfl.tune import sweep  # noqa: E402
from rayfl.tune.sweep import Ended, run, scheduler_of  # noqa: E402
from rayfl.tune.trials import Sweep, Trials  # noqa: E402

pytestmark = pytest.mark.usefixtures("ray_runtime")


def trial(output: Path, number: int, seed: int = 0) -> Path:
    (found,) = output.glob(f"trials/{number:03d}-*/seed-{seed}")
    return found


def alone(folder: Path, output: Path, **changes: Any) -> Path:
    """Run the configuration of a trial by itself, in this process."""
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["engine"] = {"class_path": "rayfl.engine.Inline", "init_args": threads_of(config)}
    path = output.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(config | changes))
    federation_from(["--config", str(path), "--output", str(output)]).run()
    return output


def threads_of(config: dict[str, Any]) -> dict[str, int]:
    return {"threads": config["engine"]["init_args"]["threads"]}


def untouched(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {f: (f.stat().st_mtime_ns, f.read_bytes()) for f in folder.rglob("*") if f.is_file()}


def stages(folder: Path) -> list[dict[str, Any]]:
    return json.loads(folder.with_name(folder.name + ".schedule.json").read_text())


def endings(output: Path) -> list[tuple[str, str]]:
    lines = (output / "ended.jsonl").read_text().splitlines()
    return [(line["trial"], line["end"]) for line in map(json.loads, lines)]


def kind(space: Space) -> tuple[Any, ...]:
    """Return what tells spaces apart that need code of their own."""
    return (space.scheduler.name, space.best, *sorted({d.kind for search in space.searches for d in search}))


def test_two_trials_of_every_kind_of_shipped_space(tmp_path: Path) -> None:
    """All as one sweep, whose trials share processes. Cells of their tables run in test_papers."""
    jobs, plans = {}, {}
    for space in {kind(space): space for space in map(Space.load, SPACES)}.values():
        points = space.points()[-2:]
        points = [replace(p, settings=small(p.settings), rounds=1) for p in points]
        sweep = Sweep.of(space, points)
        plans[space.name] = sweep, sweep.jobs(tmp_path / space.name)
        jobs |= {f"{space.name}-{name}": job for name, job in plans[space.name][1].items()}
    trials = Trials(Sweep(name="all", points=[], at_once=2), tmp_path, jobs)
    ended = Ended(tmp_path / "ended.jsonl")
    federation = federation_from(options(next(iter(jobs.values())).settings))
    with TableProgress(list(jobs.values()), 4) as progress:
        assert run(trials, ended, progress, federation)
    assert ended.why == dict.fromkeys(jobs, ("finished", ""))
    for name, (sweep, own) in plans.items():
        trials = Trials(sweep, tmp_path / name, own)
        results = [result_of(p, trials.of_point(k), sweep.metric) for k, p in enumerate(sweep.points)]
        best = Best.of(results, sweep.mode)
        (tmp_path / name).mkdir(exist_ok=True)
        assert points_table(name, results, sweep.metric, best).row_count == 2
        write_all(name, name, results, sweep.metric, best, [0], tmp_path / name, False)
        if name == "dirichlet_alpha":
            assert best.points == [], "no two points have the same data"
            assert not list((tmp_path / name).glob("best*"))
        else:
            assert {b.score for b in best.points} == {max(r.score for r in results)}, "all ties are"
            assert Table.load(tmp_path / name / "best.yaml").rows


def test_a_trial_is_a_federation_in_one_placement_group(tmp_path: Path, capsys, ray_runtime) -> None:
    """And its result is that of the same configuration alone."""
    told = tmp_path / "told"
    told.mkdir()
    more = f"{{method: tests.support.sweeps.Tells, method.folder: {told}, engine: Ray, engine.actors: 2, "
    more += f"engine.cpus_per_actor: 0.5, engine.address: '{ray_runtime}', rounds: 2}}"
    output = tmp_path / "out"
    numbers = (signal.SIGINT, signal.SIGUSR1, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    assert main([write(tmp_path, more=more), "--output", str(output)]) == 0
    assert [signal.getsignal(number) for number in numbers] == before, "Ray Tune leaves its own behind"
    groups, processes = defaultdict(set), defaultdict(set)
    for name in (path.name for path in told.iterdir()):
        mu, who, pid, group = name.split()
        groups[mu].add(group)
        processes[mu].add((who, pid))
    assert groups.keys() == {"0", "1"}
    assert all(len(own) == 1 and own != {"None"} for own in groups.values())
    assert groups["0"] != groups["1"]
    assert all(sorted(who for who, _ in own) == ["client", "client", "server"] for own in processes.values())
    assert bytes_of_run(trial(output, 1)) == bytes_of_run(alone(trial(output, 1), tmp_path / "alone"))


def test_too_few_processors(tmp_path: Path, capsys, ray_runtime) -> None:
    more = f"{{engine: Ray, engine.actors: 50, engine.cpus_per_actor: 1, engine.address: '{ray_runtime}'}}"
    assert main([write(tmp_path, more=more), "--output", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "a trial can never be placed" in said
    assert "which take 50 CPUs" in said
    assert "room for 4 of 50 actors" in said


def test_a_sweep_whose_ray_is_gone_says_so_in_a_line(
    tmp_path: Path, capsys, ray_runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "PULSE", 0.0)
    monkeypatch.setattr(sweep.Cluster, "gone", lambda self: "Ray's GCS at 192.0.2.1:6379")
    output = str(tmp_path / "sweep")
    assert main([write(tmp_path), "--output", output, "--address", ray_runtime]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    says = "Ray's GCS at 192.0.2.1:6379 is gone, and with it all trials: go on with --resume"
    assert line == f"rayfl: error: {says} {output}"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_what_comes_after_a_sweep(
    tmp_path: Path, capsys, ray_runtime, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(sweep.Watcher, "on_step_end", lambda *others, **more: signal.raise_signal(number))
    given = [write(tmp_path), "--output", str(tmp_path / "out"), "--address", ray_runtime]
    try:
        with pytest.raises(KeyboardInterrupt) if number == signal.SIGINT else nullcontext():
            assert command.run(parse_with_options(command.parser(), given)) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert "go on with --resume" in capsys.readouterr().out


def test_a_killed_sweep_goes_on(tmp_path: Path, capsys, ray_runtime) -> None:
    """Finished trials are left alone; the others end with the bytes of an undisturbed run."""
    output = tmp_path / "out"
    search, more = "search: {method.mu: [0.0, 0.5, 1.0]}", "{rounds: 30, checkpoint_every: 2}"
    space = write(tmp_path, search=search, more=more)
    command = [sys.executable, "-m", "rayfl.tune", space, "--output", str(output), "--at_once", "1"]
    process = subprocess.Popen([*command, "--address", ray_runtime], stdout=subprocess.DEVNULL)
    wait_until(lambda: any(rounds_of(run) >= 5 for run in output.glob("trials/001-*/seed-0")), process)
    process.kill()
    process.wait()
    first = untouched(trial(output, 0))
    begun = (trial(output, 1) / "environment.json").read_bytes()
    assert main(["--resume", str(output), "--address", ray_runtime]) == 0
    assert untouched(trial(output, 0)) == first
    assert json.loads((trial(output, 1) / "environment.json").read_bytes())["resumed"]
    assert json.loads(begun)["command"].endswith("--at_once 1 --address " + ray_runtime)
    assert bytes_of_run(trial(output, 1)) == bytes_of_run(alone(trial(output, 1), tmp_path / "alone"))
    assert len((output / "points.csv").read_text().splitlines()) == 4
    assert main(["--resume", str(output), "--training.lr", "3"]) == 2
    assert main([space, "--output", str(output)]) == 2
    assert "go on with --resume" in capsys.readouterr().err


def test_a_bad_trial_is_stopped_and_the_best_point_feeds_a_table(tmp_path: Path, capsys, ray_runtime) -> None:
    """Successive halving, one trial after the other; a failure does not keep the others."""
    output = tmp_path / "out"
    space = write(
        tmp_path,
        search="search: {training.lr: [0.1, 0.0000001, 1.0e+30]}",
        scheduler="scheduler: {name: asha, grace: 1, reduction: 2}",
    )
    given = [space, "--output", str(output), "--at_once", "1", "--address", ray_runtime]
    assert main([*given, "--data.noise", "0.3"]) == 1
    said = capsys.readouterr()
    assert "lr=1e+30, base, seed 0: FAILED: round 0: client 0" in said.out
    ends = ["finished", "stopped", "failed"]
    assert endings(output) == [(f"{k:03d}-seed-0", end) for k, end in enumerate(ends)]
    assert Result.load(trial(output, 1)).summary["completed"] == 1

    best = output / "best.yaml"
    table = Table.load(best)
    assert table.rows["Ditto"].settings["method"] == "Ditto"
    assert table.base["training.lr"] == 0.1
    assert run_main(["--config", str(best), "--engine", "Inline", "--output", str(tmp_path / "one")]) == 0
    assert bytes_of_run(tmp_path / "one") == bytes_of_run(trial(output, 0))

    sweep = Sweep.load(output)
    trials = Trials(sweep, output, sweep.jobs(output))
    ended = Ended.load(trials)
    assert [ended.over(name) for name in trials.jobs] == [True, True, False], "a failed trial is tried again"
    rungs = dict(scheduler_of(trials, ended)._brackets[0]._rungs)
    assert set(rungs[1]) == {"000-seed-0", "001-seed-0"}, "the scheduler has seen both again"


def test_population_based_training(tmp_path: Path, capsys, ray_runtime) -> None:
    """The worse of two trials, which take turns, goes on as a copy of the other with all personal models."""
    output = tmp_path / "out"
    space = write(
        tmp_path,
        search="search: {training.lr: {loguniform: [0.0000001, 0.3]}}",
        samples="{samples: 2, draw_seed: 19}",  # 0.06, and one that learns nothing
        scheduler="scheduler: {name: pbt, interval: 2, quantile: 0.5, resample: 0.0}",
        more="{rounds: 6, clients: null, engine.threads: 3}",  # of the 4 CPUs, so that the trials take turns
    )
    assert main([space, "--output", str(output), "--address", ray_runtime]) == 0
    assert sorted(endings(output)) == [("000-seed-0", "finished"), ("001-seed-0", "finished")]
    schedules = [stages(trial(output, k)) for k in (0, 1)]
    (copy,) = [k for k in (0, 1) if len(schedules[k]) == 2]
    donor = 1 - copy
    first, second = schedules[copy]
    assert first == schedules[donor][0]
    assert (first["round"], second["round"] % 2, second["trial"]) == (0, 0, f"{copy:03d}-seed-0")
    changed = second["values"]["training.lr"] / first["values"]["training.lr"]
    assert changed == pytest.approx(1.2) or changed == pytest.approx(0.8)

    # The same by hand: the other's federation up to there, and then on with the changed settings.
    rounds = second["round"]
    made = alone(trial(output, donor), tmp_path / "made", rounds=rounds)
    config = yaml.safe_load((trial(output, copy) / "config.yaml").read_text())
    (made / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(UserError, match=r"of another run: training\.lr is"):
        resumed(made).run()
    goes_on = resumed(made)
    Checkpoints(made / "checkpoints").take_over(goes_on.deciding())
    goes_on.run()
    assert bytes_of_run(made) == bytes_of_run(trial(output, copy))
    assert layered({}, second["values"])["training.lr"] == config["training"]["lr"]


def test_points_that_cannot_work_are_refused(tmp_path: Path, capsys) -> None:
    output = tmp_path / "out"
    assert main([write(tmp_path), "--data.val_fraction", "0", "--output", str(output)]) == 2
    assert "data.val_fraction" in capsys.readouterr().err
    assert main([write(tmp_path), "--eval_every", "0", "--output", str(output)]) == 2
    assert "eval_every is 0" in capsys.readouterr().err
    batch = ["--net", "CNNB", "--training.batch_size", "1"]
    assert main([write(tmp_path), *batch, "--output", str(output)]) == 2
    assert "training.batch_size is 1, but CNNB has BatchNorm" in capsys.readouterr().err
    halving = {"search": "search: {clients: [4, 40]}", "scheduler": "scheduler: {name: asha, grace: 1}"}
    assert main([write(tmp_path, **halving), "--output", str(output)]) == 2
    assert "scheduler asha stops the worse trials, and the points of this sweep" in capsys.readouterr().err
    assert not output.exists()
