"""Models that leave a run, and programs without rayfl that use them."""

import hashlib
import json
import shutil
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import nn

from rayfl import load_models
from rayfl.__main__ import main
from rayfl.commands.export import export
from rayfl.data import Synthetic
from rayfl.methods import METHODS
from rayfl.nets import CNNB, ViT
from tests.support.federations import small


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A round of Ditto; of 12 clients some have never trained."""
    folder = tmp_path_factory.mktemp("export") / "run"
    small(folder, method=METHODS["Ditto"](), rounds=1, participation=0.25).run()
    return folder


def test_weights_are_those_of_a_net_written_by_somebody_else(run, tmp_path):
    path = export(run, 3, tmp_path / "model.safetensors", view="global")
    weights, models = load_file(path), load_models(run)
    x, _ = models.batch(3)
    conv = nn.Sequential(
        *(nn.Conv2d(x.shape[1], 6, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()),
    )
    conv.load_state_dict({n.removeprefix("conv."): t for n, t in weights.items() if n.startswith("conv.")})
    z = conv(x)
    for layer in ("fc.0", "fc.2"):
        z = (z @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]).relu()
    scores = z @ weights["head.weight"].T + weights["head.bias"]
    torch.testing.assert_close(scores, models.scores(3, x)["global"], rtol=1e-4, atol=1e-4)


def test_a_program_of_two_nets_has_their_weights_alone(tmp_path, capsys):
    """And takes batches of any size. Without validation data, too; and nothing of the clients' samples."""
    data = Synthetic(train=60, test=20, shape=(1, 16, 16), classes=3, dtype="uint8")
    small(tmp_path / "run", method=METHODS["FedCO2"](), data=data, clients=3, rounds=1).run()
    assert main(["export", str(tmp_path / "run"), "--client", "1"]) == 2
    assert "give --format torch" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "run"), "--client", "1", "--format", "torch"]) == 0
    path = tmp_path / "run" / "models" / "client-1-personal.pt2"
    weights = check_program(tmp_path / "run").state_dict
    assert all(value.is_floating_point() for value in weights.values())
    assert load_models(tmp_path / "run")[1].module().state_dict().keys() == weights.keys()
    about = json.loads(path.with_name(f"{path.name}.json").read_text())
    assert about["format"] == "torch"
    assert about["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert about["preprocessing"]["divide_by"] == 255


@pytest.mark.slow
def test_a_program_of_a_transformer(tmp_path, capsys):
    data = Synthetic(train=30, test=20, shape=(1, 16, 16), classes=3)
    small(tmp_path / "run", data=data, net=ViT(patch=8, depth=1), clients=2, rounds=1).run()
    assert main(["export", str(tmp_path / "run"), "--client", "1", "--format", "torch"]) == 0
    check_program(tmp_path / "run")


def check_program(folder: Path) -> torch.export.ExportedProgram:
    """Check the scores of one image and of many by the exported program of client 1, which needs no rayfl."""
    with mock.patch.dict(sys.modules, {"rayfl": None}):
        program = torch.export.load(str(folder / "models" / "client-1-personal.pt2"))
    models = load_models(folder)
    x, _ = models.batch(1)
    for rows in (x[:1], x):
        scores = models.scores(1, rows)["personal"]
        torch.testing.assert_close(program.module()(rows), scores, rtol=1e-4, atol=1e-4)
    return program


def test_what_is_told_of_a_model(run, tmp_path, monkeypatch, capsys):
    """The data set is neither read nor made again."""
    monkeypatch.setattr(Synthetic, "load", lambda self: pytest.fail("the data set was read"))
    assert main(["export", str(run), "--client", "all", "--view", "global", "--output", str(tmp_path)]) == 0
    told = [json.loads((tmp_path / f"client-{k}-global.safetensors.json").read_text()) for k in range(12)]
    cohort = json.loads((run / "metrics.jsonl").read_text())["cohort"]
    assert [k for k in range(12) if told[k]["trained"]] == cohort
    warned = capsys.readouterr().err
    assert warned.count("has never trained") == 12 - len(cohort)
    models = load_models(run, data=False)
    said = [own.client for own in models if "which has never trained, after 1 round:" in repr(own)]
    assert said == [k for k in range(12) if k not in cohort]
    assert (told[0]["view"], told[0]["round"], len(told[0]["classes"])) == ("global", 1, 10)
    assert (told[0]["format"], told[0]["takes"], told[0]["preprocessing"]) == ("safetensors", "float32", None)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--client", "12"], "client 12 is not there: clients are numbered from 0 to 11"),
        (["--client", "0", "--view", "online"], "view is 'online': there are personal, global"),
        (["--client", "all", "--output", "x.safetensors"], "give a folder"),
        (["--client", "0", "--output", "x.pt2"], "--output x.pt2 is of the format torch"),
        (["--client", "0", "--view", "global", "--output", "x.safetensors"], "Is a directory; choose"),
        (["--client", "one"], "client is 'one': it must be a whole number or 'all'"),
        ([], "required: --client"),
    ],
)
def test_what_cannot_leave(run, tmp_path, monkeypatch, arguments, why, capsys):
    monkeypatch.chdir(tmp_path)
    Path("x.safetensors").mkdir()
    assert main(["export", str(run), *arguments]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1
    assert [path.name for path in tmp_path.rglob("*")] == ["x.safetensors"]


def test_a_damaged_record_of_the_division(run, tmp_path, capsys):
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run" / "partition.json"
    content = json.loads(path.read_text())
    for inputs in (3, {"dtype": "object", "mean": [], "std": [], "largest": None}):
        path.write_text(json.dumps(content | {"inputs": inputs}))
        assert main(["export", str(tmp_path / "run"), "--client", "0"]) == 2
        assert "partition.json is damaged" in capsys.readouterr().err


def test_a_view_that_is_one_net_is_no_graph(tmp_path, capsys):
    """FedRoD's common model, which it runs in two parts, of a net of BatchNorm."""
    settings = {"method": METHODS["FedRoD"](), "net": CNNB(), "rounds": 1, "checkpoint_keep": "best"}
    small(tmp_path / "run", **settings).run()
    arguments = ["export", str(tmp_path / "run"), "--client", "0", "--view", "global", "--round", "best"]
    assert main([*arguments, "--output", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "client-0-global.safetensors.json").read_text())["round"] == 1
    weights, models = load_file(tmp_path / "client-0-global.safetensors"), load_models(tmp_path / "run")
    net = models[0].module("global")
    net.load_state_dict(weights)
    assert sum(name.endswith("num_batches_tracked") for name in weights) == 4
    x, _ = models.batch(0)
    torch.testing.assert_close(net(x), models.scores(0, x)["global"], rtol=1e-5, atol=1e-5)


def test_a_method_of_ones_own_and_the_home_folder(tmp_path, monkeypatch, capsys):
    """The current folder's modules are found, as by ``rayfl run``; not where the run's folder has some."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    lines = ("from rayfl.methods import FedAvg", "class Mine(FedAvg):", "    factor: float = 0.5")
    Path("exported_method.py").write_text("\n".join(lines))
    tiny = "--engine Inline --loggers [] --data Synthetic --data.train 80 --net LeNet --rounds 1"
    mine = ["--method", "exported_method.Mine", "--method.factor", "0.25"]
    assert main(["run", *tiny.split(), *mine, "--output=~/run"]) == 0
    config = yaml.safe_load(Path("home", "run", "config.yaml").read_text())
    assert config["method"] == {"class_path": mine[1], "init_args": {"factor": 0.25}}
    for folder, code in (("home/run", 0), ("foreign", 2)):
        sys.modules.pop("exported_method", None)
        assert main(["export", folder, "--client", "1", "--output=~/models"]) == code
        shutil.copytree("home/run", "foreign", dirs_exist_ok=True)
        Path("foreign", "exported_method.py").write_text("raise SystemExit")
    assert Path("home", "models", "client-1-personal.safetensors").exists()
    assert main(["report", "home/run", "--save=~/table.csv"]) == 0
    assert main(["figure", "rounds", "home/run", "--save=~/rounds.svg"]) == 0
    assert {"table.csv", "rounds.svg"} <= {path.name for path in Path("home").iterdir()}
