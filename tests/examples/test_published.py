"""Published settings: what a file says of rayfl holds, and one round runs on small files."""

import re
from itertools import product
from pathlib import Path

import pytest

from rayfl.data import TorchvisionData
from rayfl.federation import federation_of
from rayfl.jobs.table_file import Table
from rayfl.settings.description import config_of, flatten_config
from rayfl.settings.reader import merge_layers
from tests.support.examples import EXAMPLES, example
from tests.support.federations import federation_from
from tests.support.image_files import write_cifar10, write_cifar100, write_mnist
from tests.support.tables import ROOT, available

FILES = sorted((ROOT / "published").glob("*.yaml"))
TABLES = {path.stem: Table.load(path) for path in FILES}
CELLS = [(name, *cell) for name, table in TABLES.items() for cell in product(available(table), table.columns)]


def lines_of(path: Path) -> list[list[str]]:
    """The lines of a file's list: what, the script, rayfl's options, and whether they differ."""
    found = [re.split(r" ?\| ?", line) for line in re.findall(r"^# (\|.*)", path.read_text(), re.M)]
    assert found[0] == ["", "what", "the script", "rayfl", "", ""]
    assert {len(cells) for cells in found} == {6}
    return [cells[1:5] for cells in found[1:]]


def options_of(path: Path, row: str, column: str) -> dict[str, str]:
    """What the list says of a cell: option -> value. `[FedAvg] a=1; b=2` is for that row or column alone."""
    found: dict[str, dict[str, str]] = {"": {}, row: {}, column: {}}
    for _, _, options, _ in lines_of(path):
        scope = ""
        for part in options.split("; ") if options != "-" else ():
            named, option, value = re.fullmatch(r"(?:\[(.+?)\] )?([\w.]+)=(.+)", part).groups()
            scope = named or scope
            assert scope in ("", *TABLES[path.stem].rows, *TABLES[path.stem].columns)
            if scope in found:
                assert option not in found[scope], f"{option} is listed twice"
                found[scope][option] = value
    return found[""] | found[row] | found[column]


def config(path: Path, row: str, column: str, options: dict[str, str]) -> dict[str, object]:
    words = [word for option, value in sorted(options.items()) for word in (f"--{option}", value)]
    settings = federation_from(["--config", str(path), "--row", row, "--column", column, *words])
    return flatten_config({key: value for key, value in config_of(settings).items() if key != "cell"})


@pytest.mark.parametrize(("name", "row", "column"), CELLS)
def test_the_list_is_the_configuration(name: str, row: str, column: str) -> None:
    """Options with the listed values change nothing, and no option of the file is left out."""
    path = ROOT / "published" / f"{name}.yaml"
    listed = options_of(path, row, column)
    assert config(path, row, column, listed) == config(path, row, column, {})
    cell = TABLES[name].settings(row, column)
    assert cell.keys() - {"cell", "method", "data.root"} <= listed.keys()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_lines_that_differ_are_counted(path: Path) -> None:
    """In the file, and on the page."""
    ends = [end for *_, end in lines_of(path)]
    assert all(end == "" or end.startswith("differs: ") for end in ends)
    count = f"{sum(map(bool, ends))} of {len(ends)}"
    assert f"\n# {count} lines differ.\n" in path.read_text()
    page = (EXAMPLES.parent / "docs" / "protocols.md").read_text()
    assert re.search(rf"\[`published/{path.stem}`\].*\| {count} \|", page)


SMALL = {"clients": 4, "rounds": 1, "training.epochs": 1, "training.batch_size": 16, "checkpoint_every": 0}
SMALL |= {"loggers": [], "quiet": True, "engine": "Inline"}
PARTS = {"data.partition.min_samples": 2, "data.partition.train": 8, "data.partition.test": 2}
PARTS |= {"finetune.epochs": 1}
"""Fewer clients, samples and steps; those of parts for the options that a cell has."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_cifar10(folder, per_file=20)
    write_cifar100(folder, range(100))
    write_mnist(folder, of="FashionMNIST", sizes=(100, 20))
    return folder


KINDS = [
    (name, row, column)
    for name, row, column in CELLS
    if row == available(TABLES[name])[0]
    or (column == next(iter(TABLES[name].columns)) and len(TABLES[name].rows[row].settings) > 1)
]
"""A row of every column, and in the first one the rows that change more than the method."""


@pytest.mark.parametrize(("name", "row", "column"), KINDS)
def test_one_round_on_small_files(tmp_path: Path, files: Path, name: str, row: str, column: str) -> None:
    """With all that a cell says of data, clients, training and scores; large nets give way to a small one."""
    settings = TABLES[name].settings(row, column)
    small = SMALL | {key: value for key, value in PARTS.items() if settings.get(key)}
    small |= {"data.root": str(files), "output": str(tmp_path / "run")}
    if settings["data"] != TorchvisionData.__name__:
        small["data.verify"] = False
    if settings["net"] in ("Module", "ResNet18"):
        small["net"] = "CNNB"
    result = federation_of(merge_layers(settings, small)).run()
    assert result.complete
    assert 0 <= result.figure <= 1


def test_nets_beside_the_files() -> None:
    """Numbers of parameters by hand: a block of n from m has 9 n (m + n) + 4 n, its shortcut m n + 2 n."""
    nets = example("published/nets.py")
    widths = ((64, 64), (64, 128), (128, 256), (256, 512))
    blocks = [9 * n * (m + n) + 4 * n + (m != n) * (m + 2) * n for m, n in widths]
    sizes = [
        sum(p.numel() for p in net(10).parameters()) for net in (nets.CifarCNN, nets.ResNet10, nets.ResNet8)
    ]
    cnn = 1_216 + 12_832 + 18_496 + 73_856 + 1_290
    assert sizes == [cnn, 27 * 64 + 128 + sum(blocks) + 5_130, 147 * 64 + 128 + sum(blocks[:3]) + 2_570]


def test_a_file_takes_a_net_beside_it(tmp_path: Path, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the heads of five files say; where rayfl's net has options, they go with it."""
    monkeypatch.chdir(ROOT / "published")
    monkeypatch.syspath_prepend(str(ROOT / "published"))
    said = {path: re.findall(r"rayfl table \S+\.yaml (--net \S+)", path.read_text()) for path in FILES}
    assert sum(map(len, said.values())) == 5
    for path, words in said.items():
        column = next(iter(TABLES[path.stem].columns))
        for word in words:
            cell = ["--config", path.name, "--row", "FedAvg", "--column", column]
            assert config_of(federation_from([*cell, *word.split()]))["net"] == word.split()[1]
    small = SMALL | {"data.partition.train": 8, "data.partition.test": 2, "net": "nets.CifarCNN"}
    small |= {"data.root": str(files), "data.verify": False, "output": str(tmp_path / "run")}
    assert federation_of(TABLES["fedpac"].settings("FedPer", "CIFAR-10", small)).run().complete
