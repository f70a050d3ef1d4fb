"""The papers' tables: every file can be used, every kind of cell runs, printed numbers find their cells."""

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import yaml

from rayfl.data import CIFAR10, CIFAR100
from rayfl.evaluation import FDSE as FDSEProtocol
from rayfl.federation import federation_of
from rayfl.jobs.table_file import Table, merge_layers
from rayfl.methods import FDSE, METHODS, WRAPPERS
from rayfl.nets import FDSEAlexNet
from rayfl.report.paper_tables import compare
from rayfl.report.printed import Figure, known_tables, printed_table
from rayfl.settings.reader import DottedSettings
from rayfl.training import Exponential
from tests.support.records import write_run
from tests.support.tables import FILES, TABLES, available, stand_in

IDS = {
    "fedco2": ["t1", "t2", "t3", "t4", "t5", "t7", "t8", "t9", "t10", "t11", "t12", "t13"],
    "fedios": ["t1", "t2", "t3", "t4", "t5", "t6", "t7"],
    "dcpfl": ["t1", "t2", "t3"],
    "fdse": ["t1", "t2", "t3", "ta8", "ta9"],
}


def test_there_is_a_file_for_every_table():
    assert {f"{paper}_{table}" for paper, tables in IDS.items() for table in tables} <= TABLES.keys()
    assert [f"{path.parent.name}_{path.stem}" for path in FILES] == list(TABLES)


BEYOND_THE_PAPERS = {"APFL", "FedALA", "FedAMP", "FedFomo", "FedOpt", "FedRep", "PFedMe", "PerFedAvg"}


def test_all_methods_are_in_the_tables():
    methods = {table.rows[row].settings["method"] for table in TABLES.values() for row in available(table)}
    assert methods | BEYOND_THE_PAPERS == METHODS.keys() | WRAPPERS.keys()
    waiting = [name for name, table in TABLES.items() if table.missing and not name.startswith("published")]
    assert not waiting, "a row waits for its method"


def some_of_all(table: Table) -> Iterator[tuple[str, str]]:
    """Every row, every column, and every kind of settings that a row has for single columns."""
    rows, columns = available(table), list(table.columns)
    yield from ((row, columns[0]) for row in rows)
    yield from ((rows[0], column) for column in columns[1:] if rows)
    for row in rows:
        yield from ((row, column) for column in {tuple(s): c for c, s in table.rows[row].at.items()}.values())


@pytest.mark.parametrize("name", TABLES)
def test_every_row_and_column_is_a_federation(name: str) -> None:
    table = TABLES[name]
    for row, column in dict.fromkeys(some_of_all(table)):
        settings = table.settings(row, column)
        federation = federation_of(settings)
        assert type(federation.method).__name__ == settings["method"]
        assert type(federation.data).__name__ == settings["data"]
        if not isinstance(federation.net, list):
            assert type(federation.net).__name__ == settings["net"]
        assert type(federation.protocol).__name__ == settings.get("protocol", "Default")
        assert federation.rounds == settings["rounds"]
        assert federation.training.lr == settings["training.lr"]


@pytest.mark.parametrize(
    ("paper", "data", "mean"), [("fedios", "CIFAR100", 0.5), ("dcpfl", "CIFAR10", 0.485)]
)
def test_images_of_cifar_are_normalised_as_in_the_paper(paper: str, data: str, mean: float) -> None:
    """FediOS takes .5, DC-PFL follows FedGH, whose code has ImageNet's numbers for CIFAR-10."""
    found = 0
    for table in (t for name, t in TABLES.items() if name.startswith(paper)):
        for column in table.columns:
            settings = table.settings(next(iter(available(table))), column)
            if settings["data"] == data:
                cifar = federation_of(settings).data
                assert isinstance(cifar, CIFAR10 | CIFAR100)
                assert cifar.mean_and_std[0][0] == mean, (table.name, column)
                found += 1
    assert found > 3


def test_no_setting_is_trained_twice() -> None:
    for table in TABLES.values():
        for column in table.columns:
            cells = [{**table.settings(row, column), "cell": None} for row in table.rows]
            different = {json.dumps(cell, sort_keys=True) for cell in cells}
            assert len(different) == len(cells), (table.name, column)


PRESETS = [("fdse_t1", column) for column in ("DomainNet", "Office-Caltech10", "PACS")] + [
    (table, f"{data} {domain}")
    for table in ("fdse_t2", "fdse_ta9")
    for data, domains in (("Office", "CADW"), ("DomainNet", "CIPQRS"))
    for domain in domains
]


@pytest.mark.parametrize(("name", "column"), PRESETS)
@pytest.mark.parametrize("row", ["FDSE", "FDSE (code)"])
def test_presets_of_fdse(name: str, column: str, row: str) -> None:
    """As the paper has it, with defaults for what it does not print; and as its public code configures it."""
    federation = federation_of(TABLES[name].settings(row, column))
    method, training, office = federation.method, federation.training, column.startswith("Office")
    assert isinstance(method, FDSE)
    if row == "FDSE":
        assert (method.lam, method.tau, method.beta) == (0.1, 0.1, 0.001)
        assert (method.unit, method.reg, federation.net) == ("block", "paper", FDSEAlexNet())
        assert (training.epochs, training.schedule) == (1 if office else 5, Exponential(decay=0.998))
    else:
        assert (method.lam, method.tau, method.beta) == ((0.05, 0.5, 0.05) if office else (0.5, 0.5, 0.001))
        assert (method.unit, method.reg) == ("tensor", "code")
        assert federation.net == FDSEAlexNet(act="none", padding="code")
        assert training.epochs == (5 if column == "PACS" else 1)
        assert training.schedule == Exponential(decay=0.9998)
    assert (method.attn_unit, method.gamma, method.ema_init) == ("tensor", 0.9, "received")
    assert (method.consensus, method.attention) == (True, True)
    assert (method.unseen_epochs, method.unseen_lr) == (5, 1e-3)
    assert (training.batch_size, training.lr, training.momentum) == (50, 0.1 if office else 0.05, 0.0)
    assert (training.weight_decay, training.clip) == (1e-3, 10)
    assert (federation.rounds, federation.protocol, federation.participation) == (500, FDSEProtocol(), 1.0)
    assert federation.data.image_size == 256  # type: ignore[attr-defined]


def kind_of(settings: DottedSettings) -> tuple[str, ...]:
    """What makes a cell a kind of its own; numbers do not."""
    words = [f"{k}={v}" for k, v in settings.items() if k.startswith("method") and isinstance(v, str | bool)]
    keys = ("net", "net.act", "protocol", "participation", "unseen")
    return (*words, *(str(settings.get(key)) for key in keys))


def kinds() -> dict[tuple[str, ...], tuple[str, str, str]]:
    """Every kind -> one of the cells of this kind; no row and no column of any table is left out."""
    found: dict[tuple[str, ...], tuple[str, str, str]] = {}
    for table in TABLES.values():
        for row, column in product(available(table), table.columns):
            settings = table.settings(row, column)
            found.setdefault(kind_of(merge_layers(settings, stand_in(settings))), (table.name, row, column))
    return found


@pytest.mark.parametrize("cell", kinds().values(), ids=" ".join)
def test_every_kind_of_cell_runs(tmp_path, cell: tuple[str, str, str]) -> None:
    name, row, column = cell
    table = TABLES[name]
    settings = table.settings(row, column, stand_in(table.settings(row, column)))
    result = federation_of(settings | {"output": str(tmp_path / "run")}).run()
    assert result.complete
    assert 0 <= result.accuracy <= 1, "the protocol of the table finds no score"


# ---- printed numbers


def test_printed_tables_and_files_have_the_same_names():
    for paper, tables in known_tables().items():
        for table in tables:
            printed = printed_table(f"{paper}_{table}")
            file = TABLES[f"{paper}_{table}"]
            assert printed is not None
            assert printed.title == file.title
            for column in printed.columns.values():
                places = [printed.columns[part] for part in column.mean_of] or [column]
                assert {place.cell for place in places} <= file.columns.keys()
            ours = file.rows.keys() | printed.figures.keys()
            assert printed.rows.keys() <= ours
            assert {source for source, _ in printed.figures.values()} <= file.rows.keys()
            assert printed.same.keys() <= ours
            assert set(printed.same.values()) <= printed.rows.keys()
            unprinted = file.rows.keys() - printed.rows.keys() - printed.same.keys() - {"FedAvg-FT"}
            assert not printed.rows or not unprinted


def test_every_row_has_a_number_for_every_column():
    for name in (f"{paper}_{table}" for paper, tables in IDS.items() for table in tables):
        printed = printed_table(name)
        assert printed is not None
        for row, cells in printed.rows.items():
            assert cells.keys() == printed.columns.keys(), (name, row)
            for mean, std in cells.values():
                assert (mean is None and std is None) or 0 < mean < 100
                assert std is None or (bool(printed.spread) and 0 <= std < 12)


@pytest.mark.parametrize(
    ("table", "row", "column", "mean", "std"),
    [
        ("fedco2_t3", "Fed-CO2", "CIFAR10 Dirichlet", 77.45, 0.30),
        ("fedco2_t1", "SingleSet", "Avg", 65.1, 1.7),
        ("dcpfl_t3", "FedGH", "K=100", 63.93, None),
        ("fdse_t2", "FDSE, not adapted", "Office AVG", 66.91, None),
        ("dcpfl_t1", "FD", "CIFAR100 K=10", None, None),
    ],
)
def test_some_printed_numbers(table, row, column, mean, std):
    assert printed_table(table).rows[row][column] == (mean, std)


AVERAGED = [
    *(
        (name, "Avg")
        for name in ("fedco2_t1", "fedco2_t2", "fedco2_t4", "fedco2_t7", "fedco2_t8", "fedco2_t9")
    ),
    *(("fdse_t2", f"{data} AVG") for data in ("Office", "DomainNet")),
]


@pytest.mark.parametrize(("name", "average"), AVERAGED)
def test_averages_are_means_of_their_rows(name: str, average: str) -> None:
    """Transcribed numbers agree with each other, up to the paper's rounding, but where a warning says so."""
    printed = printed_table(name)
    assert printed is not None
    parts = printed.columns[average].mean_of or [column for column in printed.columns if column != average]
    for row, cells in printed.rows.items():
        off = sum(cells[part][0] or 0 for part in parts) / len(parts) - (cells[average][0] or 0)
        assert (abs(off) < 0.15) != ((name, row) == ("fedco2_t7", "SingleSet")), row


def test_out_of_reach():
    assert "label of another" in printed_table("fedco2_t8").reason("FedAvg", "Avg")
    assert printed_table("fedco2_t7").reason("FedAvg", "Avg") is None
    assert printed_table("fedco2_t7").reason("SingleSet", "Avg")
    assert printed_table("fedios_t5").reason("FediOS", "lambda=0.1") is None
    assert "no effect" in printed_table("fedios_t5").reason("FediOS", "lambda=50.0")
    assert printed_table("fedios_t6").reason("FedAvg", "ResNet18") is None
    assert "from scratch" in printed_table("fedios_t6").reason("FedAvg", "DenseNet121")


def test_adaptation_stands_beside_its_control():
    """In both tables of unseen domains, for both presets."""
    for name in ("fdse_t2", "fdse_ta9"):
        printed = printed_table(name)
        for row in ("FDSE", "FDSE (code)"):
            assert printed.figures[f"{row}, not adapted"] == (row, Figure(average="mean", points=("unseen",)))
            assert printed.figures[f"{row}, step 0"] == (
                row,
                Figure(average="mean", points=("unseen_control",)),
            )


def test_the_middle_of_three_studies_is_one_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", protocol=FDSEProtocol())
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["cell"] = {"table": "fdse_fig6", "row": "lambda=0.1", "column": "PACS", "changed": []}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    entries = compare("fdse_fig6", [folder])
    assert {entry.row for entry in entries} == {"lambda=0.1", "tau=0.1", "beta=0.001"}
    for column in ("PACS ALL", "PACS AVG"):
        (mean,) = {entry.mean for entry in entries if entry.column == column}
        assert mean is not None
