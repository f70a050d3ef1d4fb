"""Pictures from Python: what they are made of, and that a notebook shows them."""

import pytest
from matplotlib.figure import Figure

import rayfl
from rayfl.errors import UserError
from rayfl.evaluation.result import Result
from tests.support.records import write_run


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
    assert isinstance(figure, Figure)
    assert [ax.get_title() for ax in axes] == ["ink", "print", "paint"]
    assert len(plot.bars().axes) == len(plot.radar().axes) == 1
    assert len(plot.clients(["personal", "global"]).axes) == 2
    assert [ax.get_title() for ax in plot.sweep("method.mu").axes] == ["all clients"]


def test_several_runs_are_grouped_by_what_differs(folder):
    one, two = Result.load(folder / "A-0.1-0"), Result.load(folder / "A-0.1-1")
    assert names(rayfl.Plot(one, two).rounds(panels=["all"]).axes[0]) == ["A"]
    (axes,) = rayfl.Plot(folder, by=["method"]).rounds(panels=["all"]).axes
    assert names(axes) == ["A", "B"]
    (axes,) = rayfl.Plot(one, folder / "B-0.1-0").bars(["global"], ["ink", "all"]).axes
    assert names(axes) == ["A", "B"]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["ink", "all clients"]


def test_notebooks_show_pictures(folder, tmp_path):
    picture = Result.load(folder / "A-0.1-0").plot.rounds()
    assert picture._repr_png_().startswith(b"\x89PNG")
    picture.save(tmp_path / "new" / "x.svg")
    assert (tmp_path / "new" / "x.svg").read_text().startswith("<?xml")


def test_progress_belongs_to_rounds(folder):
    table = rayfl.Plot(folder, by=["method"]).progress(panels=["ink"], target=10.0)
    assert [str(column.header) for column in table.columns] == ["", "ink", "ink, rounds"]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda f: rayfl.Plot(), "no runs to draw"),
        (lambda f: rayfl.Plot(f, by="method"), r'must be a list of keys, such as \["method"\]'),
        (lambda f: rayfl.Plot(f).rounds(views="personal"), r'views is "personal": it must be a list'),
        (lambda f: rayfl.Plot(f).rounds(panels="all"), r'panels is "all": it must be a list'),
        (lambda f: rayfl.Plot(f).bars(panels="all"), r'panels is "all": it must be a list'),
        (lambda f: rayfl.Plot(f).sweep("method.mu", panels="all"), r'panels is "all": it must be a list'),
        (lambda f: rayfl.Plot(f).rounds(quantity="beauty"), "quantity beauty: no run has recorded"),
        (lambda f: rayfl.Plot(f / "nothing"), "not a run folder"),
    ],
)
def test_mistakes_are_explained(folder, draw, message):
    with pytest.raises(UserError, match=message):
        draw(folder)
