"""What is printed of a run that has ended."""

import io

from rich.console import Console

from rayfl import evaluation
from rayfl.data.task import ACCURACY
from rayfl.report.summary import final_table
from rayfl.report.text import choice_headings, clock, mean_and_std, size
from rayfl.running.result import Result
from tests.support.records import write_run


def table(folder, **more):
    """What is printed of a run."""
    out = Console(file=io.StringIO(), width=80, highlight=False)
    final_table(Result.load(folder).summary | more, out)
    return out.file.getvalue()


def test_the_final_table_shows_every_view_choice_and_domain(tmp_path):
    text = table(write_run(tmp_path / "run", domains=("ink", "print", "photo")))
    summary = Result.load(tmp_path / "run").summary
    personal, shared = summary["views"]
    for entry in (personal, shared):
        for choice in ("last", "best_val", "last_k"):
            for name in ("mean", "pooled", "worst_decile"):
                assert ACCURACY.shown(entry[choice][name]) in text
    for name, domain in personal["last"]["domains"].items():
        (row,) = [line.split() for line in text.splitlines() if line.strip().startswith(f"{name} ")]
        assert row[:3] == [name, "2", ACCURACY.shown(domain["mean"])]
    means = [d["mean"] for d in personal["last"]["domains"].values()]
    assert f"mean of domains             {ACCURACY.shown(sum(means) / 3)}" in text
    headline = ACCURACY.shown(summary["headline"]["figure"])
    (line,) = [line for line in text.splitlines() if line.startswith("Protocol Default")]
    assert line.startswith(f"Protocol Default: {headline} %, personal, after aggregation")
    lines = [line.strip() for line in text.splitlines()]
    assert lines[3].split() == ["view", "average", "round", "validation", "last", "5"]
    assert lines[lines.index(next(each for each in lines if each.startswith("global "))) - 1] == ""
    assert len(line) > 80, "the terminal wraps sentences, so that they can be copied"
    assert "…" not in text


def test_the_window_of_a_protocol_has_its_own_column(tmp_path):
    run = write_run(tmp_path / "run", protocol=evaluation.FedCO2CIFAR(), rounds=20, eval_every=4)
    text = table(run)
    assert "last 20 " in text, "the window is as long as the run"
    assert "last 200" not in text
    assert "pooled, mean ± std over 4 evaluations of rounds 5 to 20" in text
    by_validation = table(write_run(tmp_path / "best", protocol=evaluation.FedCO2Feature()))
    assert ", best by validation." in by_validation


def test_what_is_wrong_with_a_run_is_said(tmp_path):
    run = write_run(tmp_path / "run", stop_after=4)
    text = table(run, dropped=2, not_finite=3, empty=1)
    empty = "Rounds without clients: 1.\n"
    for said in ("Dropped updates: 2;", "Values that were NaN or infinite: 3;", empty):
        assert said in text
        assert said.partition(":")[0] not in table(run)
    assert "Incomplete: 4 of 10 rounds." in text
    assert "Ended early, by the protocol's patience: 4 of 10 rounds." in table(run, early=True)
    nothing = table(write_run(tmp_path / "none", stop_after=0))
    assert nothing.startswith("No evaluation took place.\nProtocol Default: n/a")


def test_texts_of_numbers():
    assert [clock(s) for s in (0, 59.6, 3661, 360000)] == ["0:00:00", "0:01:00", "1:01:01", "100:00:00"]
    assert [size(n) for n in (999, 1000, 2.5e9, 3e15)] == ["999 B", "1.00 kB", "2.50 GB", "3000.00 TB"]
    shown = [ACCURACY.shown(*mean_and_std(x)) for x in ([0.12345], [0.4, 0.6], [0.5, None], [])]
    assert shown == ["12.35", "50.00 ± 14.14", "n/a", "n/a"]


def test_the_mean_of_the_last_evaluations_says_their_number(tmp_path):
    """And without validation data no round is the best by them."""
    for rounds, number, other in ((6, "last 3", "last 5"), (20, "last 5", "last 3")):
        text = table(write_run(tmp_path / str(rounds), rounds=rounds, val=False))
        assert number in text
        assert other not in text
        (row,) = [line for line in text.splitlines() if line.strip().startswith("personal ")]
        assert row.split()[-2] == "n/a"
    views = [view for n in ("6", "20") for view in Result.load(tmp_path / n).summary["views"]]
    assert choice_headings(views)["last_k"] == "mean of\nlast 3 to 5"
