"""The papers' tables: every file can be used, every kind of cell runs, printed numbers find their cells."""

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from rayfl.evaluation import FDSE as FDSEProtocol
from rayfl.federation import federation_of
from rayfl.jobs.table_file import Table, merge_layers
from rayfl.methods import METHODS
from rayfl.nets import FDSEAlexNet
from rayfl.report.paper_tables import compare
from rayfl.report.printed import CellFigure, known_tables, printed_table
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
    assert methods | BEYOND_THE_PAPERS == METHODS.keys()
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
        names = {"method": federation.method, "data": federation.data, "protocol": federation.protocol}
        names |= {} if isinstance(federation.net, list | str) else {"net": federation.net}
        for key, made in names.items():
            assert type(made).__name__ == settings.get(key, "Default")
        assert (federation.rounds, federation.training.lr) == (settings["rounds"], settings["training.lr"])


def test_images_of_cifar_are_normalised_as_in_the_paper() -> None:
    """FediOS takes .5, DC-PFL follows FedGH, whose code has ImageNet's numbers for CIFAR-10."""
    found = {("fedios", "CIFAR100"): [], ("dcpfl", "CIFAR10"): []}
    for name, table in TABLES.items():
        for column in table.columns:
            settings = table.settings(next(iter(available(table))), column)
            if (each := found.get((name.partition("_")[0], settings["data"]))) is not None:
                each.append(federation_of(settings).data.mean_and_std[0][0])
    assert [{*means} for means in found.values()] == [{0.5}, {0.485}]
    assert min(map(len, found.values())) > 3


def test_no_setting_is_trained_twice() -> None:
    for table in TABLES.values():
        for column in table.columns:
            cells = [{**table.settings(row, column), "cell": None} for row in table.rows]
            different = {json.dumps(cell, sort_keys=True) for cell in cells}
            assert len(different) == len(cells), (table.name, column)


@pytest.mark.parametrize("row", ["FDSE", "FDSE (code)"])
def test_presets_of_fdse(row: str) -> None:
    """As the paper has it, with defaults for what it does not print; and as its public code configures it."""
    for name, column in product(("fdse_t1", "fdse_t2", "fdse_ta9"), ("Office", "DomainNet", "PACS")):
        table = TABLES[name]
        for each in (found for found in table.columns if found.startswith(column)):
            federation = federation_of(table.settings(row, each))
            method, training, office = federation.method, federation.training, column == "Office"
            options = (method.lam, method.tau, method.beta, method.unit, method.reg)
            if row == "FDSE":
                assert options == (0.1, 0.1, 0.001, "block", "paper")
                assert federation.net == FDSEAlexNet()
                assert (training.epochs, training.schedule) == (1 if office else 5, Exponential(decay=0.998))
            else:
                assert options == (*((0.05, 0.5, 0.05) if office else (0.5, 0.5, 0.001)), "tensor", "code")
                assert federation.net == FDSEAlexNet(act="none", padding="code")
                assert training.epochs == (5 if column == "PACS" else 1)
                assert training.schedule == Exponential(decay=0.9998)
            assert (method.attn_unit, method.gamma, method.ema_init) == ("tensor", 0.9, "received")
            assert (method.consensus, method.attention) == (True, True)
            assert (method.unseen_epochs, method.unseen_lr) == (5, 1e-3)
            assert (training.batch_size, training.momentum) == (50, 0.0)
            assert (training.lr, training.weight_decay, training.clip) == (0.1 if office else 0.05, 1e-3, 10)
            assert (federation.rounds, federation.participation) == (500, 1.0)
            assert (federation.protocol, federation.data.image_size) == (FDSEProtocol(), 256)


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


@pytest.mark.parametrize("all_kinds", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_kind_of_cell_runs(tmp_path: Path, all_kinds: bool) -> None:
    """By default one of each protocol."""
    found = kinds()
    chosen = found.values() if all_kinds else {kind[-3]: cell for kind, cell in found.items()}.values()
    for k, (name, row, column) in enumerate(chosen):
        table = TABLES[name]
        settings = table.settings(row, column, stand_in(table.settings(row, column)))
        result = federation_of(settings | {"output": str(tmp_path / str(k))}).run()
        assert result.complete
        assert 0 <= result.figure <= 1, "the protocol of the table finds no score"


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


AVERAGED = [(f"fedco2_t{number}", "Avg") for number in (1, 2, 4, 7, 8, 9)]
AVERAGED += [("fdse_t2", f"{data} AVG") for data in ("Office", "DomainNet")]


def test_averages_are_means_of_their_rows() -> None:
    """Transcribed numbers agree with each other, up to the paper's rounding, but where a warning says so."""
    for name, average in AVERAGED:
        printed = printed_table(name)
        parts = printed.columns[average].mean_of or [
            column for column in printed.columns if column != average
        ]
        for row, cells in printed.rows.items():
            off = sum(cells[part][0] or 0 for part in parts) / len(parts) - (cells[average][0] or 0)
            assert (abs(off) < 0.15) != ((name, row) == ("fedco2_t7", "SingleSet")), (name, row)


def test_out_of_reach():
    for table, row, column, why in (
        ("fedco2_t8", "FedAvg", "Avg", "label of another"),
        ("fedco2_t7", "SingleSet", "Avg", ""),
        ("fedios_t6", "FedAvg", "ResNet18", None),
        ("fedios_t6", "FedAvg", "DenseNet121", "from scratch"),
    ):
        reason = printed_table(table).reason(row, column)
        assert reason is None if why is None else why in reason


def test_adaptation_stands_beside_its_control():
    """In both tables of unseen domains, for both presets."""
    for name, row in product(("fdse_t2", "fdse_ta9"), ("FDSE", "FDSE (code)")):
        figures = printed_table(name).figures
        for end, point in (("not adapted", "unseen"), ("step 0", "unseen_control")):
            assert figures[f"{row}, {end}"] == (row, CellFigure(average="mean", points=(point,)))


def test_the_middle_of_three_studies_is_one_run(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", protocol=FDSEProtocol(), cell=("fdse_fig6", "lambda=0.1", "PACS"))
    entries = compare("fdse_fig6", [folder])
    assert {entry.row for entry in entries} == {"lambda=0.1", "tau=0.1", "beta=0.001"}
    for column in ("PACS ALL", "PACS AVG"):
        (mean,) = {entry.mean for entry in entries if entry.column == column}
        assert mean is not None
