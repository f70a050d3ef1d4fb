import io

from rich.console import Console

from rayfl.callbacks.terminal import Progress, print_start
from rayfl.data.task import ACCURACY
from rayfl.evaluation.metrics import round_figure
from tests.support.records import MadeUpRun, partition, record

RUN = MadeUpRun()


def shown(round, evaluate=True):
    return record(round, partition(6), evaluate=evaluate)


def accuracy(made):
    return ACCURACY.shown(round_figure(made, RUN.population, RUN.protocol))


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
