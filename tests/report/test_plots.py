import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from rayfl import evaluation
from rayfl.errors import BadData, BadValue, Missing, Unknown
from rayfl.report import plot
from rayfl.report.compare import group_runs, rounds_to
from rayfl.report.plot import ALL, Plot, drawn_groups, panel_curve, sweep_lines
from rayfl.running.result import Result
from tests.support.records import pool, write_run
from tests.support.refusals import refused


def run(path, **settings):
    return Result.load(write_run(path, **settings))


def test_the_curve_of_a_domain_is_that_of_its_clients(tmp_path):
    made = run(tmp_path / "run", rounds=5)
    rounds, accuracy = panel_curve(made, "ink")
    tests = made.clients.query("part == 'test' and view == 'personal' and domain == 'ink'")
    expected = 100 * tests.groupby("round")["figure"].mean()
    assert rounds.tolist() == [2, 4, 5]
    np.testing.assert_allclose(accuracy, expected)
    assert panel_curve(made, ALL)[1][-1] == pytest.approx(100 * made.figure)
    assert len(panel_curve(made, "paint")[0]) == 0
    assert len(panel_curve(made.scored(view="online"), ALL)[0]) == 0


@pytest.mark.parametrize("average", ["mean_clients", "pooled", "weighted"])
def test_losses_are_averaged_as_the_protocol_says(tmp_path, average):
    made = run(tmp_path / "run", rounds=4, protocol=evaluation.Default(average=average))
    whole = made.clients.query("part == 'test' and view == 'global' and round == 3")
    for panel, table in ((ALL, whole), ("print", whole.query("domain == 'print'"))):
        weights = {"pooled": table["samples"], "weighted": 100 + table["client"]}.get(average)
        rounds, loss = panel_curve(made.scored(view="global"), panel, "loss")
        assert (rounds[-1], loss[-1]) == (4, pytest.approx(np.average(table["loss"], weights=weights)))


def test_the_chosen_value_is_the_headline(tmp_path):
    made = run(tmp_path / "run", protocol=evaluation.FedCO2Feature())
    assert plot.chosen_value(made, ALL) == pytest.approx(100 * made.figure)
    (best,) = made.summary["headline"]["rounds"]
    query = f"part == 'test' and view == 'personal' and domain == 'ink' and round == {best}"
    assert plot.chosen_value(made, "ink") == pytest.approx(100 * made.clients.query(query)["figure"].mean())
    assert math.isnan(plot.chosen_value(made, "paint"))
    without = run(tmp_path / "without", protocol=evaluation.FedCO2Feature(), val=False)
    with refused(Missing, "without"):
        plot.chosen_value(without, ALL)


def test_progress_by_hand():
    rounds, accuracy = np.array([1, 2, 3, 4]), np.array([10.0, 30.0, 20.0, 40.0])
    assert rounds_to((rounds, accuracy), 25.0) == 2
    assert rounds_to((rounds, accuracy), 40.0) == 4
    assert rounds_to((rounds, accuracy), 41.0) is None
    assert rounds_to((np.array([1, 2]), 100 * np.array([0.57, 0.6])), 57.0) == 1  # 56.99999999999999
    assert plot.roughness(accuracy) == pytest.approx(math.sqrt((10**2 + 20**2 + 10**2) / 2))  # of 20, -10, 20
    assert math.isnan(plot.roughness(accuracy[:2]))


def test_progress_is_printed_per_panel(tmp_path):
    runs = [run(tmp_path / str(seed), seed=seed, rounds=10) for seed in range(2)]
    table = Plot(*runs).progress(panels=["ink", ALL], target=101.0)
    assert str(table.title).startswith("Roughness of test accuracy: "), "also beside curves of the loss"
    cells = [list(column.cells) for column in table.columns]
    assert [str(column.header) for column in table.columns] == ["", "ink", "ink, rounds", ALL, "all, rounds"]
    assert cells[2] == cells[4] == ["not reached"]
    expected = np.mean([plot.roughness(panel_curve(r, ALL)[1]) for r in runs])
    assert cells[3] == [f"{expected:.2f}"]
    out = Console(file=io.StringIO(), width=80)
    out.print(Plot(*runs).progress(panels=[ALL]))
    assert out.file.getvalue().splitlines()[1].strip() == "evaluations, in points"  # by words, not letters


def test_the_clients_of_two_runs_have_their_boxes_and_means(tmp_path):
    runs = [run(tmp_path / method, method=method) for method in ("A", "B")]
    boxes, _ = Plot(*runs).clients().axes
    points = [line.get_xydata()[0].tolist() for line in boxes.lines if len(line.get_xdata()) == 1]
    for place, one in enumerate(runs):
        figures = 100 * one.history.scores["after_aggregation", "personal", "test"].figure[-1]
        assert [place, pytest.approx(figures.mean())] in points


def test_views_make_series(tmp_path):
    groups = group_runs([run(tmp_path / m, method=m) for m in ("A", "B")])
    assert [g.name for g in drawn_groups(groups)] == ["A", "B"]
    names = [g.name for g in drawn_groups(groups, ["personal", "global"])]
    assert names == ["A, personal", "A, global", "B, personal", "B, global"]
    with refused(Unknown, "view"):
        drawn_groups(groups, ["online"])
    never = group_runs([run(tmp_path / "never", eval_every=0)])
    with refused(Missing, "runs"):
        drawn_groups(never)


def test_cells_of_a_table_are_named_by_their_rows(tmp_path):
    def cell(row, column, method, mu, seed=0):
        config = write_run(tmp_path / f"{row}{column}{seed}", method=method, mu=mu, seed=seed) / "config.yaml"
        with config.open("a") as file:
            file.write(f"cell:\n  table: t1\n  row: {row}\n  column: {column}\n  changed: []\n")
        return Result.load(config.parent)

    runs = [cell(f"Fed-{m}", "digits", m, mu, seed) for m, mu in (("A", 0.1), ("B", 0.5)) for seed in (0, 1)]
    assert [g.name for g in drawn_groups(group_runs(runs))] == ["Fed-A", "Fed-B"]
    other = cell("Fed-A", "office", "A", 0.2)
    names = ["Fed-A, digits", "Fed-B, digits", "Fed-A, office"]
    assert [g.name for g in drawn_groups(group_runs([*runs, other]))] == names
    ((name, points),) = sweep_lines([runs[0], other], "method.mu", None)
    assert (name, [x for x, _ in points]) == ("Fed-A", [0.1, 0.2])
    lines = sweep_lines([runs[0], cell("mu = 1", "digits", "A", 1.0)], "method.mu", None)
    assert [name for name, _ in lines] == ["A"]
    without = run(tmp_path / "without", method="C")
    assert [g.name for g in drawn_groups(group_runs([runs[0], without]))][1].startswith("C")


def test_panels_are_domains(tmp_path):
    series = drawn_groups(group_runs([run(tmp_path / "run")]))
    assert plot.domains_of(series) == plot.check_panels([], series) == ["ink", "print"]
    assert plot.check_panels([ALL, "ink"], series) == [ALL, "ink"]
    with refused(Unknown, "panels"):
        plot.check_panels(["paint"], series)


def test_a_sweep_has_a_line_for_what_else_differs(tmp_path):
    """Runs without a score are left out, such as a trial whose training diverges."""
    kinds = [(m, mu, seed) for m in ("A", "B") for mu in (0.5, 0.1) for seed in (0, 1)]
    runs = [run(tmp_path / f"{m}{mu}{s}", method=m, mu=mu, seed=s, rounds=2) for m, mu, s in kinds]
    failed = run(tmp_path / "failed", mu=9.0, stop_after=0)
    lines = sweep_lines([failed, *runs], "method.mu", None)
    assert [name for name, _ in lines] == ["A", "B"]
    for _, points in lines:
        assert [x for x, _ in points] == [0.1, 0.5]
        assert [len(s.runs) for _, s in points] == [2, 2]
    together = sweep_lines(runs, "method.mu", "global", by=["clients"])
    assert [[len(s.runs) for _, s in points] for _, points in together] == [[4, 4]]
    with refused(Unknown, "over") as caught:
        sweep_lines(runs, "method.nu", None)
    assert "did you mean method.mu?" in str(caught.value)
    with refused(BadValue, "over"):
        sweep_lines(runs, "net", None)
    with refused(Missing, "runs"):
        sweep_lines([failed], "method.mu", None)
    with refused(Unknown, "view"):
        sweep_lines([failed, *runs], "method.mu", "online")


def test_a_sweep_over_the_data_is_one_line(tmp_path):
    """A key such as ``data.quantity`` changes the data by itself; a key such as ``mu`` does not."""
    sizes = {0.1: pool("a" * 64, ink=60), 0.5: pool("b" * 64, ink=300)}
    runs = [run(tmp_path / str(mu), mu=mu, rounds=2, pool=held) for mu, held in sizes.items()]
    for made, mu in zip(runs, sizes):
        made.config["data"]["init_args"]["quantity"] = mu
        made.config["method"]["init_args"]["mu"] = 0.0
    ((name, points),) = sweep_lines(runs, "data.quantity", None)
    assert (name, [x for x, _ in points]) == ("FedAvg", [0.1, 0.5])
    for made, mu in zip(runs, sizes):
        made.config["data"]["init_args"]["quantity"] = 1
        made.config["method"]["init_args"]["mu"] = mu
    lines = sweep_lines(runs, "method.mu", None)
    assert [name.partition(", ")[2] for name, _ in lines] == [
        "EmbeddedDigits [60 samples, aaaaaa]",
        "EmbeddedDigits [300 samples, bbbbbb]",
    ]


def test_a_radar_scales_every_axis_by_its_best(tmp_path):
    domains = ("ink", "print", "paint")
    runs = [run(tmp_path / m, method=m, level=x, domains=domains) for m, x in (("A", 0.9), ("B", 0.6))]
    (ax,) = [a for a in Plot(*runs).radar().axes if a.get_visible()]
    best, worse = (line.get_ydata() for line in ax.lines)
    assert best.tolist() == [1, 1, 1, 1]  # closed: the first again
    expected = [plot.chosen_value(runs[1], d) / plot.chosen_value(runs[0], d) for d in domains]
    np.testing.assert_allclose(worse[:3], expected)
    with refused(BadData, "EmbeddedDigits"):
        Plot(run(tmp_path / "two")).radar()


def test_labels_are_those_of_the_partition(tmp_path):
    made = run(tmp_path / "run", clients=2, rounds=1)
    with refused(Missing, "partition.json"):
        Plot(made).labels()
    path = made.folder / "partition.json"
    partition = json.loads(path.read_text())
    for client, counts in zip(partition["clients"], ([5, 0, 2], [0, 7, 1])):
        client |= {"labels": {"train": counts}, "train": sum(counts)}
    path.write_text(json.dumps(partition))
    figure = Plot(made).labels()
    assert figure.axes[0].images[0].get_array().tolist() == [[5, 0], [0, 7], [2, 1]]
    assert (len(figure.axes), len(figure.figure.axes)) == (1, 2)  # one panel, and its colour bar


def test_panels_show_the_runs_that_have_scores_there(tmp_path):
    """As where every run leaves another domain out of training."""
    runs = [run(tmp_path / str(seed), seed=seed) for seed in range(2)]
    for made, left_out in zip(runs, ("ink", "print"), strict=True):
        population = made.history.population
        population.samples["test"][[domain == left_out for domain in population.domains]] = 0
    titles = [ax.get_title() for ax in Plot(*runs).rounds(panels=["ink", "print"]).axes]
    assert titles == ["ink", "print"]
    one = Plot(runs[0])
    assert list(one.progress(panels=["print", ALL]).columns[1].cells) != ["n/a"]
    assert [ax.get_title() for ax in one.rounds(panels=["ink", "print", ALL]).axes] == [
        "print",
        "all clients",
    ]
    with refused(Missing, "panels"):
        one.rounds(panels=["ink"])
