import io
import json

import numpy as np
import pytest
from rich.console import Console

from rayfl import evaluation
from rayfl.data import Synthetic
from rayfl.data.task import ACCURACY
from rayfl.errors import Unknown
from rayfl.methods import FedAvg, FedDGGA, PartialFed
from rayfl.report import compare
from rayfl.report.compare import Comparison, group_runs, labels, short_labels
from rayfl.report.summary import sentences
from rayfl.running.result import Result
from tests.support.federations import small
from tests.support.records import pool, write_run
from tests.support.refusals import refused


def load(tmp_path, *runs):
    return [Result.load(write_run(tmp_path / str(i), **options)) for i, options in enumerate(runs)]


def rows(groups, **options):
    console = Console(file=io.StringIO(), width=200, highlight=False)
    console.print(Comparison(groups, **options).table())
    return console.file.getvalue().splitlines()


def test_the_engine_and_places_do_not_tell_runs_apart(tmp_path):
    first, second = load(tmp_path, {}, {"seed": 1})
    second.config["engine"] = {"class_path": "rayfl.engine.Ray", "init_args": {"actors": 3}}
    second.config.update(quiet=True, loggers=[], checkpoint_every=3)
    second.config["data"]["init_args"] |= {"root": "elsewhere", "seed": 1}
    assert len(group_runs([first, second])) == 1
    second.config["clients"] = 7
    assert len(group_runs([first, second])) == 2
    second.config["clients"] = 6
    second.config["data"]["init_args"]["partition"]["init_args"]["alpha"] = 1.0
    groups = group_runs([first, second], ["method"])
    assert len(groups) == 2, "what divides data otherwise is never averaged"
    assert "alpha=1.0" in labels(groups, ["method"])[1][1][2]


def test_runs_on_other_data_are_no_repetitions(tmp_path):
    whole, part = pool("a" * 64, ink=600, print=600), pool("b" * 64, ink=60, print=60)
    options = [{"pool": whole}, {"pool": part}, {"pool": whole}, {}, {}, {"val": False}]
    runs = load(tmp_path, *({"seed": seed} | each for seed, each in enumerate(options)))
    groups = group_runs(runs)
    assert [[run.config["seed"] for run in group.runs] for group in groups] == [[0, 2], [1], [3, 4], [5]]
    _, cells = labels(groups)
    assert [row[1].removeprefix("EmbeddedDigits ") for row in cells] == [
        "[1,200 samples, aaaaaa]",
        "[120 samples, bbbbbb]",
        "[not recorded, 615/60/135]",  # as rayfl wrote folders before it knew digests
        "[not recorded, 615/0/135]",
    ]
    assert [row[1] for row in labels(groups[:1])[1]] == ["EmbeddedDigits"]
    assert short_labels(groups)[1] == "FedAvg, EmbeddedDigits [120 samples, bbbbbb]"
    assert short_labels(group_runs(runs, ["method"]), ["method"]) == short_labels(groups)


def test_the_table_shows_the_numbers_of_samples(tmp_path):
    groups = group_runs(load(tmp_path, {}, {"method": "FedBN"}))
    text = " ".join(" ".join(rows(groups)).split())
    assert "EmbeddedDigits, Dirichlet(alpha=0.3), 615/60/135 samples (train/val/test) " in text
    groups = group_runs(load(tmp_path / "more", {}, {"clients": 8}))
    lines = rows(groups)
    assert "samples" not in lines[0]
    shown = [line.split()[2] for line in lines if line.strip().startswith("FedAvg")]
    assert shown == ["615/60/135", "828/80/188"]


def test_what_reports_warn_of_in_data(tmp_path):
    published = {"ink": 600, "print": 400, "stone": 5000}
    part = pool("a" * 64, published, ink=60, print=400)
    first, second, third = load(
        tmp_path, {"pool": part}, {"pool": pool("b" * 64)}, {"pool": part, "method": "FedBN"}
    )
    third.config["data"]["init_args"]["verify"] = second.config["data"]["init_args"]["verify"] = False
    reduced = "reduced data: ink has 60 of 600 published images"
    assert compare.data_warnings(first) == [reduced, "without the domains stone"]
    assert compare.data_warnings(second) == [], "nothing is published that could be verified"
    assert compare.data_warnings(third) == [
        *compare.data_warnings(first),
        "data not verified (data.verify=false)",
    ]
    (old,) = load(tmp_path / "old", {})
    assert compare.data_warnings(old) == []
    old.config["data"]["init_args"]["verify"] = False
    assert compare.data_warnings(old) == ["data not verified (data.verify=false)"]
    text = [line.strip() for line in rows(group_runs([first, third]))]
    assert f"All rows: {reduced}." in text
    assert "FedBN: data not verified (data.verify=false)." in text


def test_incomplete_runs_have_no_rank_and_all_their_rounds(tmp_path):
    """The best of them is not the best of all, and they have not come equally far."""
    levels = {"FedProx": 0.5, "FedAvg": 0.9}
    short = [
        {"method": m, "level": levels[m], "seed": s, "stop_after": 2 + s} for m in levels for s in (0, 3)
    ]
    groups = group_runs(load(tmp_path, {"level": 0.5}, {"level": 0.9, "mu": 0.1}, *short))
    assert [g.complete for g in groups] == [True, True, False, False]
    columns = Comparison(groups).table().columns
    (headline,) = (column for column in columns if column.header == "headline")
    assert [text.style for text in headline.cells] == ["underline", "bold", "", ""]
    (rounds,) = (column for column in columns if column.header == "rounds")
    assert list(rounds.cells) == ["10", "10", "2 to 5 of 10", "2 to 5 of 10"]
    assert short_labels(groups)[3].endswith(", 2 to 5 rounds only")
    assert (
        "Bold: the best of the complete rows on the same data; underlined: the second."
        in Comparison(groups).caption()
    )


def test_by_groups_by_these_keys_alone(tmp_path):
    runs = load(tmp_path, {"mu": 0.1}, {"mu": 0.2}, {"method": "FedProx"})
    groups = group_runs(runs, ["method"])
    assert [len(group.runs) for group in groups] == [2, 1]
    assert groups[0].config["method.mu"] == "various"
    with refused(Unknown, "by") as caught:
        group_runs(runs, ["mu"])
    assert "did you mean method.mu?" in str(caught.value)


def test_runs_of_other_views_or_protocols_are_not_averaged(tmp_path):
    """FedAvg and FedAvg, fine-tuned, are no repetitions, whatever the keys; the rows say what differs."""
    other = {"protocol": evaluation.Default(view="global"), "seed": 2}
    runs = load(tmp_path, {}, {"seed": 1}, other, {"seed": 3})
    runs[3].summary["headline"]["view"] = "global"  # of a method without personal models
    groups = group_runs(runs, ["method"])
    assert [[run.config["seed"] for run in group.runs] for group in groups] == [[0, 1], [2], [3]]
    headings, cells = labels(groups, ["method"])
    assert headings[3:] == ["protocol.view", "view"]
    assert [row[3:] for row in cells] == [["personal"] * 2, ["global"] * 2, ["personal", "global"]]


def test_runs_whose_own_code_differs_are_two_rows(tmp_path):
    """The row says which module or class it is, with and without keys to group by."""
    mine = [{"seed": k, "method": "Mine", "code": {"mine.Mine": own}} for k, own in enumerate("aab")]
    runs = load(tmp_path, *mine, {})
    for by in ([], ["method"]):
        groups = group_runs(runs, by)
        assert [len(group.runs) for group in groups] == [2, 1, 1]
        headings, cells = labels(groups, by)
        assert headings[3:] == ["code.mine.Mine"]
        assert [row[3:] for row in cells] == [["a"], ["b"], [""]]


def test_methods_that_train_on_validation_data_are_marked(tmp_path):
    """As their runs record it, where there are such data."""
    runs = []
    for method, share in (
        *((method, 0.2) for method in (FedDGGA(), FedAvg(), PartialFed(), PartialFed(mode="top"))),
        (PartialFed(), 0.0),
    ):
        data = Synthetic(train=120, test=40, shape=(1, 16, 16), val_fraction=share)
        runs.append(small(tmp_path / str(len(runs)), method=method, data=data, rounds=1).run())
    groups = group_runs(runs)
    marked = [True, False, True, False, False]
    (column,) = [c for c in Comparison(groups).table().columns if c.header == "headline"]
    assert ["‡" in str(text) for text in column.cells] == marked
    assert ["‡" in str(each["warnings"]) for each in Comparison(groups).records()] == marked


def test_labels_hold_what_tells_groups_apart(tmp_path):
    groups = group_runs(load(tmp_path, {"mu": 0.1}, {"mu": 0.2}, {"mu": 0.1, "clients": 8}))
    headings, cells = labels(groups)
    assert headings == ["method", "data", "partition", "clients"]
    assert cells[1] == ["FedAvg(mu=0.2)", "EmbeddedDigits", "Dirichlet(alpha=0.3)", "6"]
    wanted = ["FedAvg(mu=0.1), clients=6", "FedAvg(mu=0.2), clients=6", "FedAvg(mu=0.1), clients=8"]
    assert short_labels(groups) == wanted


def test_an_option_of_one_method_alone_is_no_difference(tmp_path):
    runs = load(tmp_path, {}, {"method": "FedProx", "mu": 0.1}, {"method": "FedBN", "stop_after": 2})
    runs[0].config["method"]["init_args"] = {}
    assert short_labels(group_runs(runs)) == ["FedAvg", "FedProx", "FedBN, 2 rounds only"]


def test_the_table_shows_mean_and_deviation_over_seeds(tmp_path):
    runs = load(tmp_path, {"seed": 4}, {"seed": 7}, {"seed": 2}, {"method": "FedBN", "stop_after": 4})
    lines = rows(group_runs(runs))
    found = [run.figure for run in runs[:3]]
    expected = ACCURACY.shown(np.mean(found), np.std(found, ddof=1))
    (row,) = [line for line in lines if line.strip().startswith("FedAvg")]
    assert row.split("  ")[0].strip() == "FedAvg"
    assert row.count(expected) == 2  # headline and last round
    assert any(line.startswith("± is the sample standard deviation") for line in lines)
    assert not any("±" in line for line in rows(group_runs(runs[:1])))
    assert "3.00 kB" in row
    assert "6.00 kB" in row
    (row,) = [line for line in lines if line.strip().startswith("FedBN")]
    assert "4 of 10" in row
    assert ACCURACY.shown(runs[3].figure) in row
    assert "EmbeddedDigits, Dirichlet(alpha=0.3)" in lines[0]
    assert any("Incomplete runs" in line for line in lines)
    record, _ = Comparison(group_runs(runs)).records()
    assert (record["method"], record["seeds"], record["runs"]) == ("FedAvg", [4, 7, 2], 3)
    assert (record["completed"], record["rounds"], record["up"], record["down"]) == (10, 10, 3000, 6000)
    assert record["headline_values"] == pytest.approx([100 * figure for figure in found])
    assert record["headline"] == pytest.approx(100 * np.mean(found))
    assert record["headline_std"] == pytest.approx(100 * np.std(found, ddof=1))
    assert record["headline_interval"] == pytest.approx(4.3027 / 3**0.5 * record["headline_std"], rel=1e-4)


def test_accuracies_are_averaged_as_the_protocol_says(tmp_path):
    (run,) = load(tmp_path, {"protocol": evaluation.FDSE()})
    (row,) = [line for line in rows(group_runs([run])) if line.strip().startswith("FedAvg")]
    assert row.split()[4] == ACCURACY.shown(run.summary["views"][0]["last"]["pooled"])


def test_means_are_over_seeds(tmp_path):
    """Of runs that differ in other settings, too, those of a seed are averaged first."""
    runs = load(tmp_path, {"seed": 3}, {"seed": 3, "mu": 0.5, "level": 0.5}, {"seed": 4, "rounds": 4})
    groups = group_runs(runs, ["method"])
    (line,) = [line for line in rows(groups, by=["method"]) if "2 (3 runs)" in line]
    assert " 4 to 10 " in line  # they are complete, so none of them has less rounds than it was to have
    (record,) = Comparison(groups, by=["method"]).records()
    assert (record["completed"], record["rounds"]) == (4, "various")
    seeds = [50 * (runs[0].figure + runs[1].figure), 100 * runs[2].figure]
    assert (record["seeds"], record["headline_values"]) == ([3, 4], pytest.approx(seeds))


def test_runs_without_a_score_are_na(tmp_path):
    runs = load(tmp_path, {"stop_after": 0})
    (row,) = [line for line in rows(group_runs(runs)) if line.strip().startswith("FedAvg")]
    assert row.split()[2:5] == ["0", "of", "10"]
    assert row.split()[5:] == ["n/a"] * 8


def test_clients_that_do_not_count_are_told_of(tmp_path):
    (run,) = load(tmp_path, {})
    for absent in (0, 3):
        untrained = {"clients": 4, "view": None, "unlisted": absent}
        headline = run.summary["headline"] | {"left_out": 7, "untrained": untrained}
        text = " ".join(sentences(run.summary | {"headline": headline}))
        assert "left out of it: 7." in text
        assert (f"trace: {absent})" in text) == (absent > 0)


def test_scores_right_after_training_of_other_models_are_told_of_beside_the_headline(tmp_path):
    (run,) = load(tmp_path, {})
    (entry, *_) = run.summary["views"]
    last = entry["last"] | {"clients": 4, "initial": 2}
    for point, view, told in (
        ("after_training", "personal", True),
        ("after_training", "global", False),
        ("after_aggregation", "personal", False),
    ):
        views = [entry | {"point": point, "view": view, "last": last}]
        said = sentences(run.summary | {"views": views, "headline": run.summary["headline"]})
        assert ("After training, last round: of 4 clients 2 by their initial model." in said) == told


def test_the_best_rows_on_the_same_data_are_marked_and_tested(tmp_path):
    kinds = [{}, {"method": "FedBN", "level": 0.5}, {"method": "Ditto", "level": 0.7}]
    runs = load(
        tmp_path,
        *({"seed": seed} | kind for kind in kinds for seed in range(3)),
        *({"clients": 8}, {"stop_after": 4}),
    )
    groups = group_runs(runs)
    (column,) = [c for c in Comparison(groups).table().columns if c.header == "headline"]
    assert [text.style for text in column.cells] == ["bold", "", "underline", "", ""]
    assert [str(text).endswith("*") for text in column.cells] == [False, True, True, False, False]
    found = Comparison(groups).named_tests()
    assert [(d.reference, d.row, d.seeds) for d in found] == [
        ("FedAvg, clients=6", f"{method}, clients=6", [0, 1, 2]) for method in ("FedBN", "Ditto")
    ]
    text = " ".join(Comparison(groups).caption())
    assert "paired t-test over seeds" in text
    assert "Holm's correction for 2 tests" in text
    assert "Not tested: " in " ".join(Comparison(group_runs([runs[0], runs[3]])).caption())
    assert Comparison(group_runs(runs[3:9])).named_tests() == [], "there is no row of FedAvg"
    others = load(tmp_path / "other", *[{"seed": seed, "mu": 0.5} for seed in range(3)])
    assert Comparison(group_runs([*runs[:6], *others])).named_tests() == [], "there are two of them"


def test_rounds_and_bytes_until_a_target(tmp_path):
    """Whole rounds of each run, with 3 kB and 6 kB in each; there is no mean, and no run is forgotten."""
    runs = load(tmp_path, {"seed": 0}, {"seed": 1}, {"seed": 2, "level": 0.3}, {"method": "FedBN"})
    curves = [run.summary["views"][0]["each"]["test"] for run in runs[:2]]
    goal = 100 * min(curves[0]["mean"][2], curves[1]["mean"][3])
    first = [
        next(r + 1 for r, x in zip(own["rounds"], own["mean"]) if 100 * x >= goal - 1e-9) for own in curves
    ]
    assert first[0] != first[1]
    (found, _) = Comparison(group_runs(runs), target=goal - 1e-9).records()
    assert found["rounds_to_target_values"] == [*first, None]
    assert found["bytes_to_target_values"] == [*(9000 * n for n in first), None]
    assert found["rounds_to_target"] == f"{min(first)} to {max(first)}, 1 of 3 not reached"
    table = Comparison(group_runs(runs), target=99.9).table()
    (cells,) = [list(column.cells) for column in table.columns if column.header == "bytes to\n99.9 %"]
    assert cells == ["not reached"] * 2


def test_the_headline_stands_beside_the_spread_over_clients_and_further_metrics(tmp_path):
    (run,) = load(tmp_path, {"rounds": 4, "eval_every": 1, "protocol": evaluation.Default(choose="last_k")})
    scores = run.history.scores["after_aggregation", "personal", "test"]
    scores.measures["f1"] = np.full_like(scores.loss, 0.25)
    (record,) = Comparison(group_runs([run.scored(choose="last")])).records()
    accuracies = 100 * scores.figure[-1]
    assert record["worst_decile"] == pytest.approx(accuracies.min())
    assert record["client_std"] == pytest.approx(accuracies.std())
    assert record["f1"] == pytest.approx(0.25)
    lines = rows(group_runs([run.scored(choose="last")]))
    (shown,) = [line for line in lines if line.strip().startswith("FedAvg")]
    assert shown.split()[7:10] == [f"{accuracies.min():.2f}", f"{accuracies.std():.2f}", "0.2500"]


def with_code(run, **code):
    """Return the run with what its environment says of code."""
    path = run.folder / "environment.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found | {"code": found.get("code", {}) | code}))
    return Result.load(run.folder)


def test_other_sources_are_another_row_and_other_versions_a_mark(tmp_path):
    usual = [
        with_code(run, torch="2.0", rayfl="one") for run in load(tmp_path, *({"seed": s} for s in range(4)))
    ]
    first, second, third, fourth = usual
    runs = [first, with_code(second, torch="1.0"), third, with_code(fourth, rayfl="another")]
    groups = group_runs(runs)
    assert [[run.config["seed"] for run in group.runs] for group in groups] == [[0, 1, 2], [3]]
    assert "code.rayfl" in labels(groups)[0]
    assert "‖ torch 1.0, where most runs have 2.0" in " ".join(" ".join(rows(groups)).split())
    marked = [line for line in rows(groups) if "±" in line and "‖" in line]
    assert len(marked) == 1
    assert Comparison(groups).records()[0]["warnings"][-1].startswith("‖ torch 1.0")
    assert not any("‖" in line for line in rows(group_runs([first, third])))


def test_a_run_that_went_on_with_another_version_is_marked_with_both(tmp_path):
    usual = [with_code(run, torch="2.0") for run in load(tmp_path, *({"seed": seed} for seed in range(3)))]
    first, second, third = usual
    later = with_code(second, **{"torch to round 3": "1.0"})
    assert later.machine == {"torch": "2.0 and 1.0"}
    assert later.code == first.code == {}
    assert any("‖" in line for line in rows(group_runs([first, later, third])))


def test_the_difference_of_pairs_stands_beside_the_reference(tmp_path):
    options = [{"method": m, "seed": seed} for m in ("FedAvg", "FedBN") for seed in range(3)]
    groups = group_runs(load(tmp_path, *options))
    (test,) = Comparison(groups).named_tests()
    a, b = (compare.figures(group)["headline"] for group in groups)
    pairs = np.subtract(b, a)
    assert test.difference == pytest.approx(pairs.mean())
    assert test.interval == pytest.approx(4.302652729911275 * pairs.std(ddof=1) / 3**0.5)  # t of 2 degrees
    (line,) = [line for line in rows(groups) if line.strip().startswith("FedBN")]
    assert f"{test.difference:+.2f} ± {test.interval:.2f}" in line
