"""Table files: layers of settings, and what is said of bad ones."""

from pathlib import Path

from rayfl import Federation
from rayfl.commands.data import main as look_at
from rayfl.data import MNIST, EmbeddedDigits
from rayfl.errors import BadValue, Unknown
from rayfl.jobs.table_file import Table, find_file, first_seeds, is_table, shipped_names
from rayfl.settings.description import dump_config
from rayfl.settings.reader import merge_layers
from rayfl.tune.space import Space
from tests.support.federations import federation_from
from tests.support.refusals import refused
from tests.support.tables import TINY, write


def test_later_layers_win(tmp_path):
    table = Table.load(write(tmp_path))
    settings = table.settings("Prox", "by class", {"training.batch_size": 30, "seed": 3})
    layers = {"data.partition": "Dirichlet", "method": "FedProx", "method.mu": 0.5, "training.batch_size": 30}
    assert settings.items() >= layers.items()
    assert table.settings("Prox", "even")["method.mu"] == 0.1
    place = {"table": "tiny", "row": "Prox", "column": "by class", "changed": ["training.batch_size=30"]}
    assert settings["cell"] == place
    assert table.title == "A tiny table"


def test_options_of_one_class_are_not_given_to_another():
    base = {"data": "CIFAR10", "data.partition": "Dirichlet", "data.partition.alpha": 0.3, "clients": 4}
    assert merge_layers(base, {"data": "Synthetic"}) == {"data": "Synthetic", "clients": 4}
    kept = {"data": "CIFAR10", "data.partition": "IID", "clients": 4}
    assert merge_layers(base, {"data.partition": "IID"}) == kept
    assert merge_layers(base, {"data": "CIFAR10", "data.noise": 5}) == base | {"data.noise": 5}


def test_methods_that_are_missing(tmp_path):
    """A row whose method rayfl does not have yet says so."""
    with refused(Unknown, "method"):
        federation_from(["--config", write(tmp_path), "--row", "FedNova (ours)", "--column", "even"])
    table = Table.load(write(tmp_path))
    assert table.missing_method({"method": "FedNova"}) == "FedNova"
    assert table.missing_method({"method": "mine.Own"}) is None
    later = Table.load(write(tmp_path, TINY.replace("[FedNova]", "[FedNova, FedAvg, Other]")))
    assert later.missing_method({"method": "FedAvg"}) is None, "rayfl has it by now"


def test_data_are_found_by_the_environment(tmp_path, monkeypatch, capsys):
    """By tables, runs and looks at them."""
    table = Table.load(write(tmp_path, TINY.replace("data: Synthetic", "data: MNIST")))

    def roots(**changes):
        settings = table.settings(
            "FedAvg", "even", {f"data.{name}": value for name, value in changes.items()}
        )
        words = [word for name, value in changes.items() for word in (f"--data.{name}", value)]
        data = federation_from(["--data", "MNIST", *words]).data
        assert isinstance(data, MNIST)
        return settings.get("data.root"), data.root

    monkeypatch.setenv("RAYFL_DATA", "/there")
    assert roots() == ("/there", "/there")
    assert roots(root="/here") == ("/here", "/here")
    assert "data.root" not in table.settings("FedAvg", "even", {"data": "Synthetic"})
    assert isinstance(federation_from([]).data, EmbeddedDigits)
    assert look_at(["show", "--data", "MNIST"]) == 2
    assert "/there" in capsys.readouterr().err
    monkeypatch.delenv("RAYFL_DATA")
    assert roots() == (None, None)


def test_seeds(tmp_path):
    table = Table.load(write(tmp_path))
    assert first_seeds(table.seeds, None) == (0, 5)
    assert first_seeds(table.seeds, 1) == (0,)
    assert first_seeds(table.seeds, 4) == (0, 5, 1, 2)


def test_a_cell_with_options_of_the_command_line(tmp_path):
    path = write(tmp_path)
    cell = ["--config", path, "--row", "FedAvg", "--column", "even"]
    found = federation_from([*cell, "--rounds", "9", "--engine=Inline"])
    assert (str(found.net), found.rounds, str(found.engine)) == ("LeNet", 9, "Inline()")
    assert found.cell.changed == ["rounds=9"]

    other = federation_from([*cell, "--data", "EmbeddedDigits"])
    assert dump_config(Federation(data=other.data)) == dump_config(Federation()), "its options are dropped"


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    """Each command says which one takes the file; a cell of a table is a run, too."""
    path = tmp_path / "file.yaml"
    table = "table: a\ncolumns: {b: {}}\nrows: {c: {method: FedAvg}, d: {method: FedBN}}\n"
    sweep, run = "sweep: a\nbase: {}\nsearch: {training.lr: [0.1]}\n", "method: FedAvg\n"
    for read, others in (
        (Table.load, (sweep, run)),
        (Space.load, (table, run)),
        (lambda path: federation_from(["--config", str(path)]), (sweep,)),
    ):
        for text in others:
            path.write_text(text)
            with refused(BadValue, "file.yaml"):
                read(path)


def test_names_of_what_comes_with_rayfl(tmp_path, monkeypatch):
    """Of tables in order; but a file of the user's wins."""
    names = shipped_names("examples")
    assert names.index("fedco2/t9") < names.index("fedco2/t10")
    assert all(is_table(find_file(name, "examples")) for name in names)
    assert "fdse" in shipped_names("tune_spaces")
    with refused(Unknown, "fedco2/t33") as caught:
        find_file("fedco2/t33", "examples")
    assert "did you mean fedco2/t3?" in str(caught.value)
    monkeypatch.chdir(tmp_path)
    Path("fdse").write_text("mine")
    assert find_file("fdse", "tune_spaces") == Path("fdse")
