"""What a trial gets of a cluster, and the arithmetic of those that can never be placed."""

import pytest

from rayfl import Inline, Ray
from rayfl.errors import UserError

pytest.importorskip("ray")

from rayfl.jobs.cells import Job
from rayfl.tune.space import Dimension, Scheduler
from rayfl.tune.sweep import Ended, _inside, _PastTrial, scheduler_of, share
from rayfl.tune.trials import Sweep, Trials

NODES = [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 4.0}]


@pytest.mark.parametrize(
    ("engine", "trials", "at_once", "bundles", "together"),
    [
        (Ray(), 50, None, [{"CPU": 1.0}], 12),
        (Ray(), 3, None, [{"CPU": 1.0}] * 4, 3),
        (Ray(), 50, 2, [{"CPU": 1.0}] * 6, 2),
        (Ray(cpus_per_actor=0.5), 50, 8, [{"CPU": 0.5}] * 3, 8),
        (Ray(actors=3), 50, None, [{"CPU": 1.0}] * 3, None),
        (Ray(actors=24), 50, None, [{"CPU": 0.5}] * 24, None),
        (Ray(clients_per_actor=5), 50, 1, [{"CPU": 1.0}] * 4, 1),
        (Ray(gpus_per_actor=0.25, cpus_per_actor=1), 8, None, [{"CPU": 1.0, "GPU": 0.25}], 8),
        (Ray(gpus_per_actor=1, cpus_per_actor=0), 2, None, [{"GPU": 1}], 2),
        (Ray(actors=2, cpus_per_actor=0), 9, None, [{"CPU": 0.001}] * 2, None),
        (Inline(threads=3), 50, None, [{"CPU": 3.0}], None),
    ],
)
def test_shares(engine, trials, at_once, bundles, together):
    found = share(engine, 20, NODES, trials, at_once)
    assert found.bundles == bundles
    assert found.at_once == together
    if isinstance(engine, Ray):
        assert found.engine["engine.actors"] == len(bundles)


@pytest.mark.parametrize(
    ("mode", "decisions"), [("max", ["CONTINUE", "CONTINUE"]), ("min", ["CONTINUE", "STOP"])]
)
@pytest.mark.parametrize("name", ["asha", "median"])
def test_a_scheduler_stops_what_is_bad_in_the_mode_of_the_sweep(tmp_path, name, mode, decisions):
    """The second trial comes with the larger score."""
    job = Job("a", "base", 0, 9, tmp_path / "a", {})
    wanted = Scheduler(name, grace=1, reduction=2, min_trials=1)
    sweep = Sweep(name="s", points=[], metric="loss", mode=mode, scheduler=wanted)
    scheduler = scheduler_of(Trials(sweep, tmp_path, {"a": job}), Ended(tmp_path / "ended.jsonl"))
    found = []
    for name, score in (("a", 0.1), ("b", 0.9)):
        scheduler.on_trial_add(None, _PastTrial(name))
        found.append(scheduler.on_trial_result(None, _PastTrial(name), {"round": 1, "score": score}))
    assert found == decisions


@pytest.mark.parametrize("name", ["asha", "median"])
def test_no_trial_is_stopped_where_the_grace_exceeds_the_rounds(tmp_path, name):
    jobs = {k: Job(k, "base", 0, 9, tmp_path / k, {}) for k in "abc"}
    wanted = Scheduler(name, grace=20, reduction=2, min_trials=1)
    sweep = Sweep(name="s", points=[], scheduler=wanted)
    scheduler = scheduler_of(Trials(sweep, tmp_path, jobs), Ended(tmp_path / "ended.jsonl"))
    for k, score in zip(jobs, (0.9, 0.5, 0.1)):
        scheduler.on_trial_add(None, _PastTrial(k))
        found = [
            scheduler.on_trial_result(None, _PastTrial(k), {"round": r, "score": score}) for r in range(1, 9)
        ]
        assert found == ["CONTINUE"] * 8


def test_a_finished_trial_without_its_records_runs_again(tmp_path):
    """Somebody has removed its folder; one that was stopped stays so."""
    jobs = {k: Job(k, "base", 0, 9, tmp_path / k, {}) for k in "ab"}
    trials = Trials(Sweep(name="s", points=[]), tmp_path, jobs)
    noted = Ended(tmp_path / "ended.jsonl")
    noted.note("a", "finished")
    noted.note("b", "stopped")
    ended = Ended.load(trials)
    assert [ended.over(name) for name in jobs] == [False, True]


def test_notes_go_on_after_one_that_a_crash_has_torn(tmp_path):
    jobs = {k: Job(k, "base", 0, 9, tmp_path / k, {}) for k in "ac"}
    trials = Trials(Sweep(name="s", points=[]), tmp_path, jobs)
    path = tmp_path / "ended.jsonl"
    Ended(path).note("a", "stopped")
    path.write_text(path.read_text() + '{"trial": "b", "en')
    Ended.load(trials).note("c", "stopped")
    assert list(Ended.load(trials).why) == ["a", "c"]


def test_changed_values_stay_in_their_ranges():
    """Of whole numbers the upper end is none of them."""
    dimensions = [
        Dimension("whole", "randint", low=1, high=4),
        Dimension("real", "uniform", low=0.1, high=0.9),
        Dimension("listed", "choice", values=(1, 5)),
    ]
    for given, expected in (
        ((7, 1.2, 5), (3, 0.9, 5)),
        ((0, 0.0, 1), (1, 0.1, 1)),
        ((2, 0.5, 1), (2, 0.5, 1)),
    ):
        values = dict(zip(("whole", "real", "listed"), given))
        found = _inside(dimensions, {"values": values, "other": 1})
        assert found == {"values": dict(zip(values, expected)), "other": 1}
        assert type(found["values"]["whole"]) is int


def test_a_trial_has_no_more_actors_than_clients():
    assert len(share(Ray(), 2, NODES, 1, None).bundles) == 2


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        (
            Ray(actors=13, cpus_per_actor=1),
            "room for 12 of 13 actors with 1 CPU and 0 GPUs each, which take 13 CPUs",
        ),
        (Ray(gpus_per_actor=1, actors=3), "there is room for 2 of"),
        (Inline(threads=9), "1 actor with 9 CPUs"),
    ],
)
def test_what_can_never_be_placed(engine, says):
    with pytest.raises(UserError) as error:
        share(engine, 20, NODES, 3, None)
    assert "a trial can never be placed" in str(error.value)
    assert says in str(error.value)


def test_the_device_is_found_where_the_sweep_is_started(monkeypatch):
    """The process of a trial has no GPU of its own; its actors have."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert share(Ray(gpus_per_actor=0.25), 4, NODES, 8, None).engine["engine.device"] == "cuda"
    assert share(Ray(), 4, NODES, 8, None).engine["engine.device"] == "cpu"
    assert share(Inline(), 4, NODES, 8, None).bundles == [{"CPU": 1.0, "GPU": 1.0}]
