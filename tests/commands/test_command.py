"""The command ``rayfl``: what it says of itself, and what its short commands print."""

import subprocess
import sys
from importlib import import_module

import pytest

import rayfl
from rayfl.__main__ import COMMANDS, main
from rayfl.commands import doctor
from rayfl.commands.table import main as table
from rayfl.errors import BadValue, Missing, Unknown
from tests.support.refusals import told


def test_it_names_its_commands_and_its_version(capsys):
    assert main([]) == main(["--help"]) == 0
    said, again = capsys.readouterr().out.split("usage: ")[1:]
    assert said == again
    assert all(f"\n  {name} " in said for name in (*COMMANDS, "completion"))
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"rayfl {rayfl.__version__}\n"
    assert main(["completion", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: rayfl completion bash|zsh|tcsh\n")


def test_its_own_help_imports_nothing_large():
    """Nor does the command that says what is wrong with torch."""
    code = "import sys, rayfl.commands.doctor, rayfl.__main__ as r; r.main([]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_commands_and_shells_that_are_none(capsys):
    for words, kind, place, hint in (
        (["tabel"], Unknown, "command", "did you mean table?"),
        (["completion"], Missing, "completion", "bash|zsh"),
        (["completion", "bsh"], Missing, "completion", "bash|zsh"),
    ):
        with told(kind, place):
            assert main(words) == 2
        assert hint in capsys.readouterr().err


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
        for odd in ("<class", "rayfl.methods.", "Annotated", "null", "class_path", "``", "(type:", "['"):
            assert odd not in said


DITTO = "usage: --method Ditto [--method.OPTION VALUE ...]\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run --method.help Ditto", DITTO),
        ("run --method.help Ditto", "a number, at least 0; default: 1.0"),
        ("data show --data.partition.help Dirichlet", "\n  --data.partition.alpha ALPHA"),
        ("run --transforms.help TopK", "\n  --transforms.share SHARE"),
        ("run --data.help CIFAR10", "\n  --data.partition.help NAME"),
        ("run --data.help Table", "\n  --data.y Y            Column of what is learned"),
        ("run --data.help Table", "--data.seed SEED Seed of the partition"),
        ("table --method.help Ditto", DITTO),
        ("table embedded/methods --method.help Ditto", DITTO),
        ("tune embedded --method.help Ditto", DITTO),
        ("run --net.help FDSEAlexNet", "\nAlexNet with a width of 1024"),  # without markup
        ("run --net.help LeNet", "LeNet (6, 16, 120, 84)"),
    ],
)
def test_help_of_a_class(words, said, capsys):
    with pytest.raises(SystemExit):
        main(words.split())
    shown = capsys.readouterr().out
    assert said in (shown if "\n" in said else " ".join(shown.split()))


def test_completion():
    """Of options, names of classes and files; in a process of its own, where nothing else is loaded."""
    pytest.importorskip("shtab")
    code = "from rayfl.__main__ import main; [main(['completion', shell]) for shell in ('bash', 'zsh')]"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    bash, zsh = said.split("#compdef rayfl")
    for shell, files in (
        (bash, "_shtab_rayfl_report_pos_0_COMPGEN=_shtab_compgen_files"),
        (zsh, ":run folders, or folders of them:_files"),
    ):
        methods = "FedALA FedAMP FedAvg FedBABU FedBN"
        for word in ("--training.batch_size", "doctor", methods, "safetensors torch", files):
            assert word in shell


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
        (["show", "--clients"], Missing, "clients"),
        (["sheet", "sheet.png", "--clients", "3"], Unknown, "clients"),  # it shows undivided data
        (["show", "--data", "CIFAR"], Unknown, "data"),
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


# ---- tables by name


def test_a_table_and_a_cell_of_it_by_its_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert table(["embedded/methods", "--list"]) == 0
    assert "All methods on embedded digits" in capsys.readouterr().out
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
