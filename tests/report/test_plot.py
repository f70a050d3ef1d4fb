"""Pictures from Python: what they are made of, and that a notebook shows them."""

import json
from dataclasses import replace

import pytest

import rayfl
from rayfl.errors import BadValue, Missing, Unknown
from rayfl.report.plot import rings_from
from rayfl.running.result import Result
from tests.support.records import write_run
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


def test_a_result_draws_itself(folder):
    plot = Result.load(folder / "A-0.1-0").plot
    figure, axes = plot.rounds()
    assert figure.axes == list(axes)
    assert [ax.get_title() for ax in axes] == ["ink", "print", "paint"]
    assert len(plot.bars().axes) == len(plot.radar().axes) == 1
    assert [ax.get_title() for ax in plot.clients(["personal", "global"]).axes][1] == "each client"
    assert [ax.get_title() for ax in plot.sweep("method.mu").axes] == ["all clients"]


def test_several_runs_are_grouped_by_what_differs(folder):
    one, two = Result.load(folder / "A-0.1-0"), Result.load(folder / "A-0.1-1")
    assert names(rayfl.Plot(one, two).rounds(panels=["all"]).axes[0]) == ["A"]
    (axes,) = rayfl.Plot(folder, by=["method"]).rounds(panels=["all"]).axes
    assert names(axes) == ["A", "B"]
    assert rayfl.Plot(one, two).clients().axes[1].get_title() == "each client, mean over seeds"
    (axes,) = rayfl.Plot(one, folder / "B-0.1-0").bars(["global"], ["ink", "all"]).axes
    assert names(axes) == ["A", "B"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["ink", "all clients"]
    table = rayfl.Plot(folder, by=["method"]).progress(panels=["ink"], target=10.0)
    assert [str(column.header) for column in table.columns] == ["", "ink", "ink, rounds"]


def test_a_run_without_the_scores_that_are_asked_for_is_named(tmp_path, caplog):
    path = write_run(tmp_path / "run", val=False)
    rayfl.Plot(path, choose="last")
    assert caplog.messages == []
    rayfl.Plot(path, choose="best_val")
    assert caplog.messages == [f"not recorded: scores on validation data, after aggregation ({path})"]


def test_a_run_that_is_named_twice_counts_once(folder):
    twice = rayfl.Plot(Result.load(folder / "A-0.1-0"), folder, folder / ".." / folder.name / "A-0.1-0")
    assert len(twice.runs) == len(rayfl.Plot(folder).runs)


def test_a_sweep_with_0_shows_its_values_apart(tmp_path):
    for mu in (0.0, 0.1, 1.0, 100.0):
        write_run(tmp_path / str(mu), mu=mu, rounds=2)
    (axes,) = rayfl.Plot(tmp_path).sweep("method.mu").axes
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
    plot = rayfl.Plot(folder, by=["method"])
    names_of = {"A": "Fed$A$", "ink": "Ink", "all": "average"}
    figure, (axes,) = plot.bars(names=names_of, title="Inks")
    assert names(axes) == [r"Fed\$A\$", "B"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["Ink", "print", "paint", "average"]
    assert figure.get_suptitle() == "Inks"
    assert names(plot.rounds(panels=["all"], names={"B": "Ours"}).axes[0]) == ["A", "Ours"]
    swept = Result.load(folder / "A-0.1-0").plot.sweep("method.mu", names={"method.mu": "μ"})
    assert swept.axes[0].get_xlabel() == "μ"


def test_lines_and_bars_differ_by_more_than_colour(folder):
    plot = rayfl.Plot(folder)
    for axes in (plot.rounds(panels=["all"]).axes[0], plot.radar().axes[0]):
        lines = [line for line in axes.lines if not line.get_label().startswith("_")]
        assert len({line.get_marker() for line in lines}) == len(lines) == 4
        assert len({str(line.get_linestyle()) for line in lines}) > 1
    (axes,) = plot.bars().axes
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
        picture = rayfl.Plot(folder, by=["method"]).bars(size=size, names={"ink": "a long name of ink"})
        labels = picture.axes[0].get_xticklabels()
        assert {label.get_rotation() for label in labels} == {rotation}


def test_rows_of_panels_are_of_nearly_equal_length(tmp_path):
    plot = Result.load(write_run(tmp_path / "run", clients=5, rounds=1, domains=tuple("abcde"))).plot
    assert [ax.get_subplotspec().rowspan.start for ax in plot.rounds().axes] == [0, 0, 0, 1, 1]
    labels = plot.radar().axes[0].get_xticklabels()
    sides = [label.get_horizontalalignment() for label in labels]
    assert sides == ["left", "center", "right", "right", "center"]


def test_rings_of_radars_have_numbers(folder):
    (axes,) = rayfl.Plot(folder, by=["method"]).radar().axes
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
    figure, both = rayfl.Plot(one, two).labels()
    names_of = [[tick.get_text() for tick in ax.get_yticklabels()] for ax in both]
    assert names_of == [["cat", "dog"], ["0", "1"]]
    assert [ax.images[0].get_clim() for ax in both] == [(0, 101), (0, 101)]
    assert len(figure.axes) == 3  # one colour bar


def test_many_clients_stand_by_their_most_frequent_class(tmp_path):
    counts = [[0, 100 + k] if k % 2 else [99 + k, 1] for k in range(80)]
    (axes,) = rayfl.Plot(with_labels(tmp_path / "run", counts)).labels().axes
    drawn = axes.images[0].get_array()
    assert drawn[:, :2].tolist() == [[177, 175], [1, 1]]
    assert drawn[:, 40:42].tolist() == [[0, 0], [179, 177]]
    assert axes.get_xlabel() == "clients, by their most frequent class"


def test_clients_of_different_divisions_are_not_averaged(folder):
    one, two = Result.load(folder / "A-0.1-0"), Result.load(folder / "A-0.1-1")
    two.history.population = replace(two.history.population, division="another")
    assert rayfl.Plot(one, two).clients().axes[1].get_title() == "clients at or below"


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
        (lambda f: rayfl.Plot(), Missing, "runs"),
        (lambda f: rayfl.Plot(f / "nothing"), Missing, "nothing"),
        (lambda f: rayfl.Plot(f, by="method"), BadValue, "by"),
        (lambda f: rayfl.Plot(f).rounds(views="personal"), BadValue, "views"),
        (lambda f: rayfl.Plot(f).rounds(panels="all"), BadValue, "panels"),
        (lambda f: rayfl.Plot(f).bars(panels="all"), BadValue, "panels"),
        (lambda f: rayfl.Plot(f).sweep("method.mu", panels="all"), BadValue, "panels"),
        (lambda f: rayfl.Plot(f).rounds(quantity="beauty"), Unknown, "quantity"),
        (lambda f: rayfl.Plot(f).bars(start=100), BadValue, "start"),
        (lambda f: rayfl.Plot(f).bars(start=99), BadValue, "start"),
        (lambda f: rayfl.Plot(f).bars(size="poster"), BadValue, "size"),
        (lambda f: rayfl.Plot(f).bars(size=7), BadValue, "size"),
        (lambda f: rayfl.Plot(f).bars(size=(5, 0)), BadValue, "size"),
        (lambda f: rayfl.Plot(f, by=["method"]).bars(names={"C": "x"}), Unknown, "names"),
        (lambda f: rayfl.Plot(f).bars(names=["A"]), BadValue, "names"),
    ],
)
def test_mistakes_are_explained(folder, draw, kind, place):
    with refused(kind, place):
        draw(folder)
