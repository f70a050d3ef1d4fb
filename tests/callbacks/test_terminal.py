import io

from rich.console import Console

from rayfl import evaluation
from rayfl.callbacks.terminal import Progress, print_start
from rayfl.evaluation.metrics import round_accuracy
from rayfl.report.summary import final_table
from rayfl.report.text import clock, percent, size
from rayfl.running.result import Result
from tests.support.records import MadeUpRun, partition, record, write_run

RUN = MadeUpRun()


def shown(round, evaluate=True):
    return record(round, partition(6), evaluate=evaluate)


def accuracy(made):
    return percent(round_accuracy(made, RUN.population, RUN.protocol))


def console(**options):
    return Console(file=io.StringIO(), width=80, highlight=False, **options)


def progress(rounds, *records, start=0, interval=0, **options):
    """What a terminal shows that is told of some rounds."""
    out = console(**options)
    shows, run = Progress(interval=interval, console=out), MadeUpRun(rounds=rounds)
    assert not shows.start(run, start)
    for made in records:
        assert not shows.after_round(run, made)
    shows.end()
    return out.file.getvalue()


def table(folder, **more):
    """What is printed of a run."""
    out = console()
    final_table(Result.load(folder).summary | more, out)
    return out.file.getvalue()


def test_plain_lines_when_not_a_terminal():
    made = shown(1)
    lines = progress(12, shown(0, evaluate=False), made, shown(11, evaluate=False))
    first, second, last = lines.splitlines()
    assert first.startswith("round  1/12  cohort 3  loss 2.30")
    assert "accuracy" not in first
    assert "accuracy" in second
    assert "ETA 0:00:0" in second
    assert last.startswith("round 12/12  cohort 3")
    assert last.endswith(f"accuracy {accuracy(made)} %")


def test_plain_lines_keep_their_distance():
    """But never miss the first and the last; a resumed run estimates from its own rounds."""
    lines = progress(50, *(shown(round, evaluate=False) for round in range(50)), interval=1e9)
    assert [line.split()[1] for line in lines.splitlines()] == ["1/50", "50/50"]
    assert "9/10" in progress(10, shown(8), start=8)


def test_the_bar_of_a_terminal():
    text = progress(4, *map(shown, range(4)), force_terminal=True, color_system=None)
    for part in ("round 4/4", "cohort 3", "loss 1.4", f"accuracy {accuracy(shown(3))} %", "ETA"):
        assert part in text


def test_without_a_console_everything_goes_to_standard_output(capsys):
    path = "a folder/" * 12
    print_start({"method": "FedAvg [mu]", "output": path})
    out, err = capsys.readouterr()
    assert out == f"method  FedAvg [mu]\noutput  {path}\n"
    assert err == ""


def test_the_final_table_shows_every_view_choice_and_domain(tmp_path):
    text = table(write_run(tmp_path / "run", domains=("ink", "print", "photo")))
    summary = Result.load(tmp_path / "run").summary
    personal, shared = summary["views"]
    for entry in (personal, shared):
        for choice in ("last", "best_val", "last_k"):
            for name in ("mean", "pooled", "worst_decile"):
                assert percent(entry[choice][name]) in text
    for name, domain in personal["last"]["domains"].items():
        (row,) = [line.split() for line in text.splitlines() if line.strip().startswith(f"{name} ")]
        assert row[:3] == [name, "2", percent(domain["mean"])]
    means = [d["mean"] for d in personal["last"]["domains"].values()]
    assert f"mean of domains             {percent(sum(means) / 3)}" in text
    headline = percent(summary["headline"]["accuracy"])
    assert f"Protocol Default: {headline} %, personal, after aggregation" in text
    assert "…" not in text


def test_the_window_of_a_protocol_has_its_own_column(tmp_path):
    run = write_run(tmp_path / "run", protocol=evaluation.FedCO2CIFAR(), rounds=20, eval_every=4)
    text = table(run)
    assert "last 20 " in text, "the window is as long as the run"
    assert "last 200" not in text
    assert "pooled, mean ± std over 4 evaluations of rounds 5 to 20" in text


def test_what_is_wrong_with_a_run_is_said(tmp_path):
    run = write_run(tmp_path / "run", stop_after=4)
    text = table(run, dropped=2, not_finite=3)
    assert "Dropped updates: 2" in text
    assert "Values that were NaN or infinite: 3" in text
    assert "Incomplete: 4 of 10 rounds." in text
    assert "Ended early, by the protocol's patience: 4 of 10 rounds." in table(run, early=True)
    nothing = table(write_run(tmp_path / "none", stop_after=0))
    assert nothing.startswith("No evaluation took place.\nProtocol Default: n/a")


def test_texts_of_numbers():
    assert [clock(s) for s in (0, 59.6, 3661, 360000)] == ["0:00:00", "0:01:00", "1:01:01", "100:00:00"]
    assert [size(n) for n in (999, 1000, 2.5e9, 3e15)] == ["999 B", "1.00 kB", "2.50 GB", "3000.00 TB"]
    assert (percent(0.12345), percent(0.5, 0.01), percent(None)) == ("12.35", "50.00 ± 1.00", "n/a")


def test_the_mean_of_the_last_evaluations_says_their_number(tmp_path):
    """And without validation data no round is the best by them."""
    for rounds, number, other in ((6, "last 3", "last 5"), (20, "last 5", "last 3")):
        text = table(write_run(tmp_path / str(rounds), rounds=rounds, val=False))
        assert number in text
        assert other not in text
        (row,) = [line for line in text.splitlines() if line.strip().startswith("personal ")]
        assert row.split()[-2] == "n/a"
