"""The command ``rayfl``: what it says of itself, and what its short commands print."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import rayfl
from rayfl.__main__ import COMMANDS, main
from rayfl.commands import doctor
from rayfl.commands.table import main as table
from rayfl.errors import BadValue, Missing, Unknown
from rayfl.jobs.table_file import find_file, is_table, shipped_names
from tests.support.refusals import refused, told


def test_it_names_its_commands(capsys):
    assert main([]) == 0
    said = capsys.readouterr().out
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == said
    assert all(f"\n  {name} " in said for name in (*COMMANDS, "completion"))


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"rayfl {rayfl.__version__}\n"


def test_its_own_help_imports_nothing_large():
    """Nor does the command that says what is wrong with torch."""
    code = "import sys, rayfl.commands.doctor, rayfl.__main__ as r; r.main([]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_a_command_that_is_none(capsys):
    with told(Unknown, "command"):
        assert main(["tabel"]) == 2
    assert "did you mean table?" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name, capsys):
    """Usage under the name that people type, and no type of Python or path of a class."""
    parser = import_module(COMMANDS[name][0]).parser()
    inner = [
        each
        for action in parser._actions
        if isinstance(action.choices, dict)
        for each in action.choices.values()
    ]
    for one in (parser, *inner):
        said = one.format_help()
        assert said.startswith(f"usage: rayfl {name} ")
        for odd in ("<class", "rayfl.methods.", "Annotated", "null", "class_path", "CLASS_PATH", "``"):
            assert odd not in said
        for odd in ("(type:", "['", "flags"):
            assert odd not in said


def test_help_of_a_class(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--method.help", "Ditto"])
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("usage: --method Ditto [--method.OPTION VALUE ...]")
    assert "a number, at least 0; default: 1.0" in said


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["data", "show", "--data.partition.help", "Dirichlet"], "--data.partition.alpha ALPHA"),
        (["run", "--method", "TopK", "--method.of.help", "FedProx"], "--method.of.mu MU"),
        (["run", "--data.help", "CIFAR10"], "--data.partition.help NAME"),
    ],
)
def test_help_of_a_class_within_another_names_whole_options(arguments, option, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert f"\n  {option}" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["table"], ["table", "embedded/methods"], ["tune", "embedded"]])
def test_tables_and_sweeps_help_with_classes(words, capsys):
    with pytest.raises(SystemExit):
        main([*words, "--method.help", "Ditto"])
    assert capsys.readouterr().out.startswith("usage: --method Ditto ")


def test_help_of_a_class_has_no_markup(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--net.help", "FDSEAlexNet"])
    assert "\nAlexNet with a width of 1024" in capsys.readouterr().out


def test_help_of_a_class_without_options(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--net.help", "LeNet"])
    assert "LeNet (6, 16, 120, 84)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("shell", "files"),
    [
        ("bash", "_shtab_rayfl_report_pos_0_COMPGEN=_shtab_compgen_files"),
        ("zsh", ":run folders, or folders of them:_files"),
    ],
)
def test_completion(shell, files):
    """Of options, names of classes and files; in a process of its own, where nothing else is loaded."""
    pytest.importorskip("shtab")
    command = [sys.executable, "-m", "rayfl", "completion", shell]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    methods = "FedALA FedAMP FedAvg FedBABU FedBN"
    for word in ("--training.batch_size", "doctor", methods, "safetensors torch", files):
        assert word in said


def test_completion_asks_for_a_shell(capsys):
    with told(Missing, "completion"):
        assert main(["completion"]) == 2
    assert "bash|zsh" in capsys.readouterr().err


def test_completion_explains_itself(capsys):
    assert main(["completion", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: rayfl completion bash|zsh|tcsh\n")


# ---- data


def test_data_shows_what_a_data_set_holds(capsys):
    assert main(["data", "show", "--data", "Synthetic", "--data.classes", "3", "--clients", "2"]) == 0
    said = capsys.readouterr().out
    assert "classes  3: " in said
    assert "label skew" in said


@pytest.mark.parametrize(
    ("arguments", "kind", "place"),
    [
        ([], Missing, "ACTION"),
        (["shw"], Unknown, "action"),
        (["divide"], Missing, "OUTPUT"),
        (["show", "--clients", "0"], BadValue, "clients"),
        (["show", "--clients", "x"], BadValue, "clients"),
        (["show", "--clients"], Missing, "clients"),
        (["sheet", "sheet.png", "--clients", "3"], Unknown, "clients"),  # it shows undivided data
        (["show", "--data", "CIFAR"], Unknown, "data"),
        (["show", "--data", "CIFAR10", "--data.root", "/nowhere"], Missing, "batches.meta"),
    ],
)
def test_data_says_what_is_wrong(arguments, kind, place, capsys):
    with told(kind, place):
        assert main(["data", *arguments]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


# ---- doctor


def test_doctor_finds_data(tmp_path, capsys):
    (tmp_path / "PACS").mkdir()
    assert doctor.main(["--root", str(tmp_path)]) in (0, 1)  # 1 on a machine with little memory
    said = capsys.readouterr().out
    found = {line[:17].strip(): line[17:] for line in said.splitlines()}
    assert found["PACS"] == str(tmp_path / "PACS")
    assert found["CIFAR10"] == f"not in {tmp_path} (looked for cifar-10-batches-py)"
    assert found["DigitsFive"] == f"in {tmp_path}: none of its domains"
    assert found["rayfl"].startswith(f"{rayfl.__version__} in ")


def test_doctor_says_what_is_wrong(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(doctor, "available_memory", lambda: 1e9)
    monkeypatch.setattr(doctor, "NEEDED", ("numpy", "no-such-package"))
    assert doctor.main(["--root", str(tmp_path / "none")]) == 1
    wrong = [line for line in capsys.readouterr().out.splitlines() if line.startswith("wrong")]
    assert [line.split(":")[0] for line in wrong] == [
        "wrong  no-such-package",
        "wrong  memory",
        "wrong  data",
    ]


def test_doctor_works_where_torch_does_not(tmp_path, capsys, monkeypatch):
    def broken(name):
        if name == "torch":
            raise OSError("libcudart.so.13: no such file")

    monkeypatch.setattr(doctor, "import_module", broken)
    assert doctor.main(["--root", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "wrong  torch: cannot be imported (libcudart.so.13: no such file): install torch and" in said
    assert "GPU" not in said


# ---- tables and tune spaces by name


def test_names_of_what_comes_with_rayfl():
    assert "fedco2/t3" in shipped_names("examples")
    assert "fdse" in shipped_names("tune_spaces")


def test_names_of_tables_are_in_order_and_of_tables() -> None:
    names = shipped_names("examples")
    assert names.index("fedco2/t9") < names.index("fedco2/t10")
    assert all(is_table(find_file(name, "examples")) for name in names)
    assert find_file("fedco2/t3", "examples").read_text().startswith("#")


def test_a_file_of_the_users_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("fdse").write_text("mine")
    assert find_file("fdse", "tune_spaces") == Path("fdse")


def test_a_name_that_nothing_has():
    with refused(Unknown, "fedco2/t33") as caught:
        find_file("fedco2/t33", "examples")
    assert "did you mean fedco2/t3?" in str(caught.value)


def test_a_table_by_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert table(["embedded/methods", "--list"]) == 0
    assert "All methods on embedded digits" in capsys.readouterr().out


def test_a_cell_of_a_table_by_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cell = ["--config", "embedded/methods", "--row", "FedAvg", "--column", "domains"]
    with pytest.raises(SystemExit):
        main(["run", *cell, "--print_config"])
    assert "rayfl.methods.FedAvg" in capsys.readouterr().out


def test_ctrl_c_while_a_command_is_imported(monkeypatch, capsys):
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rayfl.__main__.import_module", interrupted)
    assert main(["run"]) == 130
    assert capsys.readouterr().err == "rayfl: interrupted\n"
