import io

import numpy as np
import pytest
from rich.console import Console

from rayfl.errors import UserError
from rayfl.record.compare import comparison, flat_config, group_runs, labels, short_labels, spread
from rayfl.record.progress import percent
from rayfl.record.protocol import PROTOCOLS
from rayfl.record.result import Result
from tests.record.made_up import write_run


def load(tmp_path, *runs):
    return [Result.load(write_run(tmp_path / str(i), **options)) for i, options in enumerate(runs)]


def rows(groups, **options):
    console = Console(file=io.StringIO(), width=200, highlight=False)
    console.print(comparison(groups, **options))
    return console.file.getvalue().splitlines()


def test_a_configuration_is_flat_under_the_names_of_the_command_line():
    config = {
        "method": {"class_path": "rayfl.methods.FedProx", "init_args": {"mu": 0.1}},
        "data": {
            "class_path": "rayfl.data.CIFAR10",
            "init_args": {"partition": {"class_path": "Dirichlet", "init_args": {"alpha": 0.3}}},
        },
        "training": {"lr": 0.01, "milestones": [1, 2], "extra": {}},
        "clip": None,
    }
    assert flat_config(config) == {
        "method": "FedProx",
        "method.mu": 0.1,
        "data": "CIFAR10",
        "data.partition": "Dirichlet",
        "data.partition.alpha": 0.3,
        "training.lr": 0.01,
        "training.milestones": "[1, 2]",
        "training.extra": "{}",
        "clip": None,
    }


def test_runs_that_differ_in_their_seed_are_one_group(tmp_path):
    runs = load(tmp_path, {"seed": 0}, {"seed": 1}, {"method": "FedProx"}, {"seed": 2})
    groups = group_runs(runs)
    assert [len(group.runs) for group in groups] == [3, 1]
    assert [group.seeds for group in groups] == [3, 1]


def test_the_engine_and_places_do_not_tell_runs_apart(tmp_path):
    first, second = load(tmp_path, {}, {"seed": 1})
    second.config["engine"] = {"class_path": "rayfl.engine.Ray", "init_args": {"actors": 3}}
    second.config.update(quiet=True, tensorboard=False, checkpoint_every=3)
    second.config["data"]["init_args"] |= {"root": "elsewhere", "seed": 1}
    assert len(group_runs([first, second])) == 1
    second.config["clients"] = 7
    assert len(group_runs([first, second])) == 2


def test_incomplete_runs_stay_apart(tmp_path):
    groups = group_runs(load(tmp_path, {"seed": 0}, {"seed": 1, "stop_after": 4}))
    assert [(len(g.runs), g.complete, g.completed) for g in groups] == [(1, True, 10), (1, False, 4)]


def test_by_groups_by_these_keys_alone(tmp_path):
    runs = load(tmp_path, {"mu": 0.1}, {"mu": 0.2}, {"method": "FedProx"})
    groups = group_runs(runs, ["method"])
    assert [len(group.runs) for group in groups] == [2, 1]
    assert groups[0].config["method.mu"] == "various"
    with pytest.raises(UserError, match=r"--by mu: no run has this key; the keys are .*method.mu"):
        group_runs(runs, ["mu"])


def test_labels_hold_what_tells_groups_apart(tmp_path):
    groups = group_runs(load(tmp_path, {"mu": 0.1}, {"mu": 0.2}, {"mu": 0.1, "clients": 8}))
    headings, cells = labels(groups)
    assert headings == ["method", "data", "partition", "clients"]
    assert cells[1] == ["FedAvg(mu=0.2)", "EmbeddedDigits", "Dirichlet(alpha=0.3)", "6"]
    assert short_labels(groups) == [
        "FedAvg(mu=0.1), clients=6",
        "FedAvg(mu=0.2), clients=6",
        "FedAvg(mu=0.1), clients=8",
    ]


def test_an_option_of_one_method_alone_is_no_difference(tmp_path):
    runs = load(tmp_path, {}, {"method": "FedProx", "mu": 0.1}, {"method": "FedBN", "stop_after": 2})
    runs[0].config["method"]["init_args"] = {}
    assert short_labels(group_runs(runs)) == ["FedAvg", "FedProx", "FedBN, 2 rounds only"]


def test_the_table_shows_mean_and_deviation_over_seeds(tmp_path):
    runs = load(tmp_path, {"seed": 0}, {"seed": 1}, {"seed": 2}, {"method": "FedBN", "stop_after": 4})
    lines = rows(group_runs(runs))
    found = [run.accuracy for run in runs[:3]]
    expected = percent(np.mean(found), np.std(found, ddof=1))
    (row,) = [line for line in lines if line.strip().startswith("FedAvg")]
    assert row.split("  ")[0].strip() == "FedAvg"
    assert row.count(expected) == 2  # headline and last round
    assert "3.00 kB" in row
    assert "6.00 kB" in row
    (row,) = [line for line in lines if line.strip().startswith("FedBN")]
    assert "4 of 10" in row
    assert percent(runs[3].accuracy) in row
    assert "EmbeddedDigits, Dirichlet(alpha=0.3)" in lines[0]
    assert any("Incomplete runs" in line for line in lines)


def test_another_view_can_be_shown(tmp_path):
    (run,) = load(tmp_path, {})
    (row,) = [line for line in rows(group_runs([run]), view="global") if line.strip().startswith("FedAvg")]
    last = run.summary["views"][1]["last"]["mean"]
    assert row.split()[1:5] == ["1", "10", percent(run.accuracy), percent(last)]


def test_accuracies_are_averaged_as_the_protocol_says(tmp_path):
    (run,) = load(tmp_path, {"protocol": PROTOCOLS["fdse"]})
    (row,) = [line for line in rows(group_runs([run])) if line.strip().startswith("FedAvg")]
    assert row.split()[4] == percent(run.summary["views"][0]["last"]["pooled"])


def test_repeated_seeds_are_not_counted_as_seeds(tmp_path):
    runs = load(tmp_path, {"seed": 3}, {"seed": 3}, {"seed": 4})
    assert any("2 (3 runs)" in line for line in rows(group_runs(runs)))


def test_runs_without_a_score_are_na(tmp_path):
    runs = load(tmp_path, {"stop_after": 0})
    (row,) = [line for line in rows(group_runs(runs)) if line.strip().startswith("FedAvg")]
    assert row.split()[2:5] == ["0", "of", "10"]
    assert row.split()[5:] == ["n/a"] * 6


def test_spread_of_incomplete_values_is_na():
    assert spread([0.5, None]) == "n/a"
    assert spread([]) == "n/a"
    assert spread([0.5]) == "50.00"
    assert spread([0.4, 0.6]) == "50.00 ± 14.14"
