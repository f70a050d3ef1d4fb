"""Tune spaces: what files may say, and the points that they mean."""

import inspect
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rayfl.errors import Conflict
from rayfl.federation import federation_of
from rayfl.methods import METHODS
from rayfl.settings.description import config_of, dump_config
from rayfl.tune.space import Dimension, Space, display_value, short_key
from rayfl.tune.sweep import check_sweep
from tests.support.refusals import refused
from tests.support.sweeps import ROOT, SPACES, write

TABLE = ROOT.parent / "examples" / "embedded" / "methods.yaml"


def space(folder: Path, search: str, **changes: str) -> Space:
    return Space.load(write(folder, search=f"search: {search}", **changes))


def test_a_grid_is_a_product(tmp_path):
    search = "{method.mu: [0.1, 1.0], training.lr: {grid_search: [0.01, 0.1, 0.5]}}"
    points = space(tmp_path, search).example_points()
    assert [p.label for p in points][:2] == ["mu=0.1, lr=0.01", "mu=0.1, lr=0.1"]
    assert len(points) == 6
    assert points[5].values == {"method.mu": 1.0, "training.lr": 0.5}
    federation = federation_of(points[5].settings)
    assert (federation.method.mu, federation.training.lr, federation.training.batch_size) == (1.0, 0.5, 20)
    assert (federation.cell.table, federation.cell.row) == ("tiny", "mu=1, lr=0.5")


def test_each_of_several_searches_sweeps_by_itself(tmp_path):
    """Without repeating the base; a key that a search leaves out has the base's value, or the default."""
    several = "[{method.mu: [0.1, 1.0]}, {training.lr: [0.1, 0.5]}, {training.clip: [3.0]}]"
    points = space(tmp_path, several).example_points()
    values = [list(p.values.values()) for p in points]
    assert values == [[0.1, 0.1, 0.0], [1.0, 0.1, 0.0], [1.0, 0.5, 0.0], [1.0, 0.1, 3.0]]


def test_a_value_can_stand_for_a_bundle_of_settings(tmp_path):
    kinds = "{mild: {method.mu: 0.1}, plain: {method: FedAvg, net: CNN}}"
    points = space(tmp_path, f"[{{kind: {{grid_search: {kinds}}}}}, {{training.lr: [0.2]}}]").example_points()
    assert [p.values for p in points] == [
        {"kind": "mild", "training.lr": 0.1},
        {"kind": "plain", "training.lr": 0.1},
        {"kind": None, "training.lr": 0.2},
    ]
    assert "method.mu" not in points[1].settings
    assert points[1].settings["net"] == "CNN"


DRAWN = """{a: {choice: {x: {training.clip: 1.0}, y: {training.clip: 2.0}}}, method.mu: {uniform: [1, 3]},
training.lr: {loguniform: [0.0001, 1.0]}, training.epochs: {randint: [1, 4]}, clients: [2, 3],
training.batch_size: {quniform: [5, 22, 5]}}"""


def test_a_space_with_draws_is_looked_at_by_its_grids_choices_and_ends(tmp_path):
    """Grids are combined with the first of all that is drawn; each other choice and end is there once."""
    found = space(tmp_path, DRAWN, samples="samples: 8")
    points = found.example_points()
    values = [list(point.values.values()) for point in points]
    first = ["x", 1.0, 0.0001, 1, 2, 5]
    changed = {0: "y", 1: 3.0, 2: 1.0, 3: 3, 5: 20}
    assert values[:2] == [first, [*first[:4], 3, 5]]
    assert values[2:] == [[*first[:k], value, *first[k + 1 :]] for k, value in changed.items()]
    assert found.point_count == 2 * 8


@pytest.mark.parametrize(
    ("dimension", "given", "expected"),
    [
        (Dimension("x", "quniform", (8, 24, 8)), 17.3, 16),
        (Dimension("x", "quniform", (8, 30, 8)), 30, 24),
        (Dimension("x", "quniform", (0.05, 1, 0.1)), 0.29, 0.3),
        (Dimension("x", "quniform", (0.05, 1, 0.1)), 0.0, 0.1),
        (Dimension("x", "randint", (1, 4)), 3.9, 3),
        (Dimension("x", "randint", (1, 4)), np.int64(2), 2),
        (Dimension("x", "uniform", (1, 3)), np.float64(2), 2.0),
        (Dimension("x", "loguniform", (0.1, 1.0)), 1.0000001, 1.0),
        (Dimension("x", "choice", (1, 2.5, "a")), np.int64(1), 1),
    ],
)
def test_what_a_searcher_draws_has_the_type_steps_and_bounds_of_its_range(dimension, given, expected):
    found = dimension.fit_to_range(given)
    assert found == expected
    assert type(found) is type(expected)


def test_numbers_are_those_of_the_federation(tmp_path):
    """1e-3 is a number in a file of YAML."""
    key = "data.partition.alpha"
    search = f"[{{{key}: [1e-1, 1.0]}}, {{training.lr: {{loguniform: [1e-3, 1.0]}}}}]"
    made = space(tmp_path, search, more="{data.partition: Dirichlet}")
    points = made.with_changes({key: 0.1}).example_points()
    assert [p.values[key] for p in points] == [0.1, 1.0, 0.1, 0.1]
    assert points[0].label.startswith("alpha=0.1, ")
    assert made.search[1][0].values == (0.001, 1.0)
    assert space(tmp_path, f"{{seeds: {{randint: [{-(2**63)}, 1]}}}}").search[0][0].values == (-(2**63), 1)


def test_changes_of_what_is_searched(tmp_path):
    """They are refused where every point has a value of its own, and count for the others."""
    with refused(Conflict, "method.mu"):
        space(tmp_path, "{method.mu: [0.1, 1.0]}").with_changes({"method.mu": 0.1}).example_points()
    parts = space(tmp_path, "[{method.mu: [0.1, 1.0]}, {training.lr: [0.2]}]")
    points = parts.with_changes({"method.mu": 5.0}).example_points()
    assert [p.settings["method.mu"] for p in points] == [0.1, 1.0, 5.0]


def test_changes_that_no_point_keeps_are_refused(tmp_path):
    """A bundle sets the key itself, or names another class."""
    kinds = "{kind: {grid_search: {norm: {method: FedBN, net: LeNet}, plain: {method: FedAvg, net: CNN}}}}"
    for key in ("net", "method.mu"):
        with refused(Conflict, key):
            space(tmp_path, kinds).with_changes({key: "3"}).example_points()
    assert len(space(tmp_path, kinds).with_changes({"net": "CNN"}).example_points()) == 2


def test_a_searched_data_set_is_where_the_command_line_says(tmp_path, monkeypatch):
    monkeypatch.delenv("RAYFL_DATA", raising=False)
    made = space(tmp_path, "{data: [CIFAR10, MNIST, EmbeddedDigits]}", base="base: {clients: 3}")
    points = made.with_changes({"data.root": "there"}).example_points()
    roots = [point.settings.get("data.root") for point in points]
    assert roots == [str(Path("there").absolute())] * 2 + [None]


def test_bases(tmp_path):
    """A cell of a table, a run's own configuration, and settings that win over them."""
    base = f"base: {{config: {TABLE}, row: Ditto, column: labels, method.mu: 3.0}}"
    cell = Space.load(write(tmp_path, base=base))
    assert cell.base.items() >= {"method": "Ditto", "data.partition": "Dirichlet", "method.mu": 3.0}.items()
    assert cell.base_name == "labels"
    assert "cell" not in cell.base  # a trial's place is that in the sweep
    settings = Space.load(write(tmp_path)).example_points()[0].settings
    (tmp_path / "config.yaml").write_text(dump_config(federation_of(settings | {"seed": 5})))
    found = Space.load(write(tmp_path, base="base: {config: config.yaml, method.mu: 3.0}"))
    assert (found.base["method.mu"], found.base["clients"], found.base_name) == (3.0, 4, "config")
    assert not {"seed", "output", "resume", "cell"} & found.base.keys()
    (tmp_path / "again.yaml").write_text("sweep: again\nbase: config.yaml\nsearch: {method.mu: [0.0]}\n")
    again = Space.load(tmp_path / "again.yaml")
    points = (s.example_points()[0].settings for s in (again, Space.load(write(tmp_path))))
    first, second = (config_of(replace(federation_of(settings), cell=None)) for settings in points)
    assert first == second


def test_the_shipped_spaces_hold_the_papers_grids():
    spaces = {path.stem: Space.load(path) for path in SPACES}
    grids = {
        (name, d.key): list(d.values) for name, s in spaces.items() for search in s.search for d in search
    }
    assert grids["fdse", "method.tau"] == [0.001, 0.01, 0.1, 0.5]
    assert grids["fdse", "method.beta"] == [1e-4, 1e-3, 0.01, 0.1, 1.0]
    assert grids["fedios", "method.alpha"] == [0.1, 0.3, 0.5, 0.6, 0.7, 0.9]
    assert spaces["fedios"].base["method.ortho_reg_on"] == "cos"
    assert grids["fedco2", "method.mu"] == [0, 0.01, 0.1, 0.5, 1, 2]
    assert grids["dcpfl", "method.num_virtual"] == [600, 800, 1000, 2000, 5000]
    assert grids["fdse_training", "training.lr"] == [0.001, 0.01, 0.05, 0.1, 0.5]
    assert [name for name, s in spaces.items() if not s.best] == ["dirichlet_alpha"]
    assert all(s.sweep == name for name, s in spaces.items())
    assert len(spaces["fdse"].example_points()) == 12 + 4 + 3


def test_points_of_the_shipped_spaces_are_federations_of_every_method():
    """Of each the last point: options that the method has. Methods without a space have no numbers."""
    searched = set()
    for space in map(Space.load, SPACES):
        method = federation_of(space.example_points()[-1].settings).method
        searched |= {(type(method).__name__, d.key) for search in space.search for d in search}
    for name, cls in METHODS.items():
        numbers = [
            f"method.{option}"
            for option, parameter in inspect.signature(cls).parameters.items()
            if isinstance(parameter.default, int | float) and not isinstance(parameter.default, bool)
        ]
        if numbers and name not in WITHOUT_A_SPACE:
            assert {(name, key) for key in numbers} & searched, name


WITHOUT_A_SPACE = {"FedBN"}
"""FedBN's number says how its statistics are renewed on an unseen domain, which is no sweep of training."""


def test_what_a_file_says_and_what_it_leaves_out(tmp_path):
    """Every entry under its own name."""
    left_out = Space.load(write(tmp_path, title=""))
    assert (left_out.sweep, left_out.title, left_out.base_name) == ("tiny", "", "base")
    assert (left_out.samples, left_out.draw_seed, left_out.seeds, left_out.at_once) == (1, 0, (0,), None)
    assert (left_out.metric, left_out.mode, left_out.best) == ("figure", None, True)
    assert (left_out.scheduler, left_out.searcher) == ({"name": "none"}, None)
    entries = {"samples": 2, "draw_seed": 3, "at_once": 4, "metric": "worst_decile", "mode": "min"}
    others = '{title: "A\\nb", best: false, seeds: [5, 6]}'
    said = Space.load(write(tmp_path, entries=str(entries), others=others))
    assert (said.title, said.best, said.seeds) == ("A b", False, (5, 6))
    assert {key: getattr(said, key) for key in entries} == entries
    for metric, mode, expected in (("figure", "", "max"), ("loss", "", "min"), ("loss", "mode: max", "max")):
        space = Space.load(write(tmp_path, metric=f"metric: {metric}", mode=mode or "title: x"))
        assert check_sweep(space, space.example_points()).mode == expected, "small losses are good"


def test_the_number_of_points_is_grids_times_draws(tmp_path):
    """Search by search; and schedulers compare the points of a setting of the data alone."""
    search = "[{clients: [2, 3], training.clip: [1, 2], method.mu: {choice: [0, 1]}}, {training.lr: [4, 5]}]"
    found = space(tmp_path, search, samples="samples: 4")
    assert found.point_count == 2 * 2 * 4 + 2
    assert [fixed for fixed, _ in found.searched_parts()] == [{"search": 0}, {"search": 1}]
    found = space(tmp_path, search, samples="samples: 4", scheduler="scheduler: asha")
    assert found.point_count == 2 * 2 * 4 + 2
    parts = [(fixed, [d.key for d in inner]) for fixed, inner in found.searched_parts()]
    own = ["training.clip", "method.mu"]
    assert parts == [
        ({"search": 0, "clients": 2}, own),
        ({"search": 0, "clients": 3}, own),
        ({"search": 1}, ["training.lr"]),
    ]


def test_labels_name_every_point_apart(tmp_path):
    """Also where values differ in digits that are not shown, and keys in their last part."""
    points = space(tmp_path, "{method.mu: [0.123456, 0.123457]}").example_points()
    assert [p.label for p in points] == ["mu=0.123456", "mu=0.123457"]
    assert [p.settings["cell"]["row"] for p in points] == [p.label for p in points]
    kinds = f"{{a/b: {{method.mu: 0.1}}, a-b: {{method.mu: 0.2}}, {'c' * 99}: {{method.mu: 0.3}}}}"
    names = [p.name for p in space(tmp_path, f"{{kind: {{grid_search: {kinds}}}}}").example_points()]
    assert len(set(names)) == 3
    assert len(names[2]) == 80 + len("-12345678")
    assert not any("/" in name for name in names)
    shown = [display_value(value) for value in (0.123456, 12345.6, None, 12345, True)]
    assert shown == ["0.1235", "1.235e+04", "-", "12345", "True"]
    keys = ["training.lr", "method.lr", "method.mu", "clients"]
    assert [short_key(key, keys) for key in keys] == ["training.lr", "method.lr", "mu", "clients"]


APART = ("data", "data.noise", "data.partition.alpha", "clients", "unseen", "unseen_clients", "protocol")
SAME = ("augment", "normalise", "image_size", "verify", "download", "cache")
LEARNING = ("training.lr", "method", "method.mu", "net", "rounds")


def test_points_that_only_learn_otherwise_are_scored_alike():
    for keys, apart in ((APART, True), ([f"data.{key}" for key in SAME], False), (LEARNING, False)):
        for key in keys:
            assert Dimension(key, "choice", (1, 2)).changes_scoring is apart
            assert (
                Dimension("kind", "choice", ("a",), {"a": {key: 1, "training.lr": 1}}).changes_scoring
                is apart
            )
