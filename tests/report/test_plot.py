"""Pictures from Python: what they are made of, and that a notebook shows them."""

import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from rayfl import evaluation
from rayfl.errors import BadData, BadValue, Missing, Unknown
from rayfl.report.compare import group_runs, rounds_to
from rayfl.report.look import Look
from rayfl.report.plot import (
    ALL,
    Plot,
    chosen_value,
    drawn_groups,
    panel_curve,
    rings_from,
    roughness,
    sweep_lines,
)
from rayfl.running.result import Result
from tests.support.records import pool, write_run
from tests.support.refusals import refused


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two methods with two parameters and two seeds each, on three domains."""
    folder = tmp_path_factory.mktemp("plot")
    domains = ("ink", "print", "paint")
    for method in ("A", "B"):
        for mu in (0.1, 1.0):
            for seed in (0, 1):
                path = folder / f"{method}-{mu}-{seed}"
                write_run(path, method=method, mu=mu, seed=seed, rounds=4, domains=domains)
    return folder


def names(axes):
    return axes.get_legend_handles_labels()[1]


def test_several_runs_are_grouped_by_what_differs(folder):
    one, two = Result.load(folder / "A-0.1-0"), Result.load(folder / "A-0.1-1")
    assert names(Plot(one, two).rounds(panels=["all"]).axes[0]) == ["A"]
    (axes,) = Plot(folder, by=["method"]).rounds(panels=["all"]).axes
    assert names(axes) == ["A", "B"]
    assert Plot(one, two).clients().axes[1].get_title() == "each client, mean over seeds"
    (axes,) = Plot(one, folder / "B-0.1-0").bars(["global"], ["ink", "all"]).axes
    assert names(axes) == ["A", "B"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["ink", "all clients"]
    table = Plot(folder, by=["method"]).progress(panels=["ink"], target=10.0)
    assert [str(column.header) for column in table.columns] == ["", "ink", "ink, rounds"]


def test_a_sweep_with_0_shows_its_values_apart(tmp_path):
    for mu in (0.0, 0.1, 1.0, 100.0):
        write_run(tmp_path / str(mu), mu=mu, rounds=2)
    (axes,) = Plot(tmp_path).sweep("method.mu").axes
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "0.1", "1", "100"]
    places = axes.transData.transform([(x, 0) for x in axes.get_xticks()])[:, 0]
    assert min(places[1:] - places[:-1]) > 0.15 * (places[-1] - places[0])


def test_files_hold_letters_and_no_time(folder, tmp_path):
    picture = Result.load(folder / "A-0.1-0").plot.rounds(panels=["all"])
    assert picture._repr_png_().startswith(b"\x89PNG")  # which notebooks show
    picture.save(tmp_path / "new" / "x.svg")
    assert (tmp_path / "new" / "x.svg").read_text().startswith("<?xml")
    for name in ("x.pdf", "one.svg", "two.svg"):
        picture.save(tmp_path / name)
    content = (tmp_path / "x.pdf").read_bytes()
    assert b"/FontFile2" in content  # TrueType, embedded
    assert b"/Type3" not in content
    assert b"CreationDate" not in content
    assert "date" not in (tmp_path / "one.svg").read_text()
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_sizes_are_those_of_a_paper(folder):
    plot = Result.load(folder / "A-0.1-0").plot
    assert plot.rounds(size="column").figure.get_figwidth() == 3.35
    assert plot.clients(size="page").figure.get_figwidth() == 7.0
    figure, (axes,) = plot.bars(size=(5, 3))
    assert figure.get_size_inches().tolist() == [5, 3]
    assert axes.yaxis.label.get_size() == 8
    rows = [ax.get_subplotspec().rowspan.start for ax in plot.rounds(size="column").axes]
    assert rows == [0, 0, 1]  # a column has room for two


def test_names_and_titles_are_the_readers(folder):
    plot = Plot(folder, by=["method"])
    names_of = {"A": "Fed$A$", "ink": "Ink", "all": "average"}
    figure, (axes,) = plot.bars(names=names_of, title="Inks")
    assert names(axes) == [r"Fed\$A\$", "B"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["Ink", "print", "paint", "average"]
    assert figure.get_suptitle() == "Inks"
    assert names(plot.rounds(panels=["all"], names={"B": "Ours"}).axes[0]) == ["A", "Ours"]
    swept = Result.load(folder / "A-0.1-0").plot.sweep("method.mu", names={"method.mu": "μ"})
    assert swept.axes[0].get_xlabel() == "μ"


def test_bars_differ_by_more_than_colour(folder):
    (axes,) = Plot(folder).bars().axes
    assert len({group[0].get_hatch() for group in axes.containers if hasattr(group, "patches")}) == 4


def test_bars_start_at_zero_or_say_where(folder):
    plot = Result.load(folder / "A-0.1-0").plot
    (axes,) = plot.bars().axes
    assert (axes.get_ylim()[0], axes.get_ylabel()) == (0, "test accuracy in %")
    (axes,) = plot.bars(start=40).axes
    assert (axes.get_ylim()[0], axes.get_ylabel()) == (40, "test accuracy in %, from 40 on")


def test_names_do_not_touch_each_other(folder):
    """In a column there is no room for three names beside each other, on a screen there is."""
    for size, rotation in ((None, 0), ("column", 30)):
        picture = Plot(folder, by=["method"]).bars(size=size, names={"ink": "a long name of ink"})
        labels = picture.axes[0].get_xticklabels()
        assert {label.get_rotation() for label in labels} == {rotation}


@pytest.mark.parametrize(("names", "width", "columns"), [(5, 20, 3), (8, 20, 4), (5, 2.5, 2), (2, 20, 2)])
def test_rows_of_the_legend_are_of_nearly_equal_length(names, width, columns):
    look, figure = Look(), Figure((width, 3))
    ax = figure.subplots()
    for number in range(names):
        ax.plot([0, 1], label=f"name {number}")
    look.add_legend(figure, [ax])
    (legend,) = figure.legends
    assert legend._ncols == columns


def test_rows_of_panels_are_of_nearly_equal_length(tmp_path):
    plot = Result.load(write_run(tmp_path / "run", clients=5, rounds=1, domains=tuple("abcde"))).plot
    assert [ax.get_subplotspec().rowspan.start for ax in plot.rounds().axes] == [0, 0, 0, 1, 1]
    labels = plot.radar().axes[0].get_xticklabels()
    sides = [label.get_horizontalalignment() for label in labels]
    assert sides == ["left", "center", "right", "right", "center"]


def test_rings_of_radars_have_numbers(folder):
    (axes,) = Plot(folder, by=["method"]).radar().axes
    rings, low = axes.get_yticks(), axes.get_ylim()[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == [f"{100 * ring:.0f} %" for ring in rings]
    assert (rings[-1], axes.get_xlabel()) == (1, f"rings: share of the best; centre: {100 * low:.0f} %")
    assert min(min(line.get_ydata()) for line in axes.lines) >= low


def test_rings_go_below_the_lowest_value():
    assert rings_from(0.985) == pytest.approx([0.98, 0.99, 1])
    assert rings_from(1.0) == pytest.approx([0.99, 1])
    assert rings_from(0.77) == pytest.approx([0.75, 0.8, 0.85, 0.9, 0.95, 1])
    assert rings_from(0.0) == pytest.approx([0, 0.25, 0.5, 0.75, 1])


def with_labels(path, counts, seed=0, **more):
    """A run whose clients have so many training samples of each class."""
    folder = write_run(path, clients=len(counts), rounds=1, seed=seed)
    content = json.loads((folder / "partition.json").read_text()) | more
    for client, row in zip(content["clients"], counts):
        client["labels"] = {"train": row}
    (folder / "partition.json").write_text(json.dumps(content))
    return folder


def test_label_maps_have_class_names_and_one_scale(tmp_path):
    one = with_labels(tmp_path / "1", [[100, 0], [0, 101]], class_names=["cat", "dog"])
    two = with_labels(tmp_path / "2", [[60, 40], [1, 100]], seed=1, class_names=None)
    figure, both = Plot(one, two).labels()
    names_of = [[tick.get_text() for tick in ax.get_yticklabels()] for ax in both]
    assert names_of == [["cat", "dog"], ["0", "1"]]
    assert [ax.images[0].get_clim() for ax in both] == [(0, 101), (0, 101)]
    assert [ax.images[0].get_array().tolist() for ax in both] == [[[100, 0], [0, 101]], [[60, 1], [40, 100]]]
    assert len(figure.axes) == 3  # one colour bar


def test_many_clients_stand_by_their_most_frequent_class(tmp_path):
    counts = [[0, 100 + k] if k % 2 else [99 + k, 1] for k in range(80)]
    (axes,) = Plot(with_labels(tmp_path / "run", counts)).labels().axes
    drawn = axes.images[0].get_array()
    assert drawn[:, :2].tolist() == [[177, 175], [1, 1]]
    assert drawn[:, 40:42].tolist() == [[0, 0], [179, 177]]
    assert axes.get_xlabel() == "clients, by their most frequent class"


def test_clients_of_different_divisions_are_not_averaged(folder):
    one, two = Result.load(folder / "A-0.1-0"), Result.load(folder / "A-0.1-1")
    two.history.population = replace(two.history.population, division="another")
    assert Plot(one, two).clients().axes[1].get_title() == "clients at or below"


def test_many_domains_are_not_a_panel_each_and_many_clients_are_a_curve(tmp_path):
    domains = tuple(f"writer {k}" for k in range(20))
    plot = Result.load(write_run(tmp_path / "run", clients=500, rounds=1, domains=domains)).plot
    assert [ax.get_title() for ax in plot.rounds().axes] == ["all clients"]
    assert [tick.get_text() for tick in plot.bars().axes[0].get_xticklabels()] == ["all clients"]
    each = plot.clients().axes[1]
    (line,) = each.lines
    assert len(line.get_xdata()) == 501  # steps of the share at or below
    assert each.get_ylabel() == "share of clients"


@pytest.mark.parametrize(
    ("draw", "kind", "place"),
    [
        (lambda f: Plot(), Missing, "runs"),
        (lambda f: Plot(f / "nothing"), Missing, "nothing"),
        (lambda f: Plot(f, by="method"), BadValue, "by"),
        (lambda f: Plot(f).rounds(views="personal"), BadValue, "views"),
        (lambda f: Plot(f).rounds(panels="all"), BadValue, "panels"),
        (lambda f: Plot(f).rounds(quantity="beauty"), Unknown, "quantity"),
        (lambda f: Plot(f).bars(start=99), BadValue, "start"),
        (lambda f: Plot(f).bars(size="poster"), BadValue, "size"),
        (lambda f: Plot(f).bars(size=7), BadValue, "size"),
        (lambda f: Plot(f).bars(size=(5, 0)), BadValue, "size"),
        (lambda f: Plot(f, by=["method"]).bars(names={"C": "x"}), Unknown, "names"),
        (lambda f: Plot(f).bars(names=["A"]), BadValue, "names"),
    ],
)
def test_mistakes_are_explained(folder, draw, kind, place):
    with refused(kind, place):
        draw(folder)


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
    assert chosen_value(made, ALL) == pytest.approx(100 * made.figure)
    (best,) = made.summary["headline"]["rounds"]
    query = f"part == 'test' and view == 'personal' and domain == 'ink' and round == {best}"
    assert chosen_value(made, "ink") == pytest.approx(100 * made.clients.query(query)["figure"].mean())
    assert math.isnan(chosen_value(made, "paint"))
    without = run(tmp_path / "without", protocol=evaluation.FedCO2Feature(), val=False)
    with refused(Missing, "without"):
        chosen_value(without, ALL)


def test_progress_by_hand():
    rounds, accuracy = np.array([1, 2, 3, 4]), np.array([10.0, 30.0, 20.0, 40.0])
    assert rounds_to((rounds, accuracy), 25.0) == 2
    assert rounds_to((rounds, accuracy), 40.0) == 4
    assert rounds_to((rounds, accuracy), 41.0) is None
    assert rounds_to((np.array([1, 2]), 100 * np.array([0.57, 0.6])), 57.0) == 1  # 56.99999999999999
    assert roughness(accuracy) == pytest.approx(math.sqrt((10**2 + 20**2 + 10**2) / 2))  # of 20, -10, 20
    assert math.isnan(roughness(accuracy[:2]))


def test_progress_is_printed_per_panel(tmp_path):
    runs = [run(tmp_path / str(seed), seed=seed, rounds=10) for seed in range(2)]
    table = Plot(*runs).progress(panels=["ink", ALL], target=101.0)
    assert str(table.title).startswith("Roughness of test accuracy: "), "also beside curves of the loss"
    cells = [list(column.cells) for column in table.columns]
    assert [str(column.header) for column in table.columns] == ["", "ink", "ink, rounds", ALL, "all, rounds"]
    assert cells[2] == cells[4] == ["not reached"]
    expected = np.mean([roughness(panel_curve(r, ALL)[1]) for r in runs])
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
        path = tmp_path / f"{row}{column}{seed}"
        return run(path, method=method, mu=mu, seed=seed, cell=("t1", row, column))

    runs = [cell(f"Fed-{m}", "digits", m, mu, seed) for m, mu in (("A", 0.1), ("B", 0.5)) for seed in (0, 1)]
    assert [g.name for g in drawn_groups(group_runs(runs))] == ["Fed-A", "Fed-B"]
    other = cell("Fed-A", "office", "A", 0.2)
    names = ["Fed-A, digits", "Fed-B, digits", "Fed-A, office"]
    assert [g.name for g in drawn_groups(group_runs([*runs, other]))] == names
    ((name, points),) = sweep_lines([runs[0], other], "method.mu", None)
    assert (name, [x for x, _ in points]) == ("Fed-A", [0.1, 0.2])
    without = run(tmp_path / "without", method="C")
    lines = sweep_lines([runs[0], cell("mu = 1", "digits", "A", 1.0), without], "method.mu", None)
    assert [name.partition(",")[0] for name, _ in lines] == ["A", "C"]
    assert [g.name for g in drawn_groups(group_runs([runs[0], without]))][1].startswith("C")


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
    expected = [chosen_value(runs[1], d) / chosen_value(runs[0], d) for d in domains]
    np.testing.assert_allclose(worse[:3], expected)
    with refused(BadData, "EmbeddedDigits"):
        Plot(run(tmp_path / "two")).radar()


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
