"""Run folders of before: resumed, reported, and their models loaded."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayfl import Inline, Result, Training, UserError, evaluation, load_models, nets, resumed
from rayfl.config.parser import federation_from
from rayfl.data import IID, Synthetic
from rayfl.methods import DCPFL, FDSE, Method
from rayfl.record.checkpoint import _hash
from rayfl.record.description import dump
from rayfl.record.former import present, present_settings, remedy, without_unused
from rayfl.report import command as report
from rayfl.run import main
from rayfl.training import Constant, Exponential, Schedule
from tests.support.federations import bytes_of_run, small

NETS: dict[str, nets.Architecture] = {
    "lenet": nets.LeNet(),
    "cnn": nets.CNN(),
    "cnn-b": nets.CNNB(),
    "DigitModel": nets.DigitModel(),
    "DigitModel-nobn1": nets.DigitModel(fc_norm=False),
    "FedAvgCNN": nets.FedAvgCNN(),
    **{f"CNN-{number}": nets.FedGHCNN(number=number) for number in (1, 2, 3, 4, 5)},
    "ResNet18": nets.ResNet18(),
    "ResNet18-7x7": nets.ResNet18(stem="original"),
    "ResNet18-7x7(pretrained=True)": nets.ResNet18(stem="original", pretrained=True),
    "MobileNetV2": nets.MobileNetV2(),
    "EfficientNet-B0( stem = small )": nets.EfficientNetB0(stem="small"),
    "DenseNet121(pretrained=true)": nets.DenseNet121(pretrained=True),
    "AlexNet": nets.AlexNet(),
    "AlexNet-nobn1": nets.AlexNet(fc_norm=False),
    "AlexNet-1024": nets.AlexNet(width=1024),
    "FDSE-AlexNet": nets.FDSEAlexNet(),
    "FDSE-AlexNet(act=none, padding=code)": nets.FDSEAlexNet(act="none", padding="code"),
    "DSE-CNN(G=4,dw=5)": nets.DSECNN(G=4, dw=5),
    "ResNet50": nets.ResNet50(),
    "DSE-ResNet50()": nets.DSEResNet50(),
    "ViT(patch=8, depth=2)": nets.ViT(patch=8, depth=2),
    "DSE-ViT(G=3)": nets.DSEViT(G=3),
}
PROTOCOLS: dict[str, evaluation.Protocol] = {
    "default": evaluation.Default(),
    "fedco2_feature": evaluation.FedCO2Feature(),
    "fedco2_last": evaluation.FedCO2Last(),
    "fedco2_cifar": evaluation.FedCO2CIFAR(),
    "fedios": evaluation.FediOS(),
    "fedios_global": evaluation.FediOSGlobal(),
    "dcpfl": evaluation.DCPFL(),
    "fdse": evaluation.FDSE(),
    "fdse_global": evaluation.FDSEGlobal(),
    "fdse+weighted": evaluation.FDSE(average="weighted"),
    "dcpfl+best_val": evaluation.DCPFL(choose="best_val"),
    "last_10": evaluation.Default(choose="last_k", k=10),
    "every_5_of_last_100+pooled": evaluation.Default(choose="window", step=5, length=100, average="pooled"),
    "best_val+patience_2": evaluation.Default(choose="best_val", patience=2),
    "unseen+global": evaluation.Default(point="unseen", view="global"),
    "mean_clients+personal+trained_only": evaluation.Default(trained_only=True),
    "fdse+after_aggregation+last": evaluation.FDSE(point="after_aggregation", choose="last"),
}


@pytest.mark.parametrize("text", NETS)
def test_every_net_of_before_is_known(text: str, tmp_path: Path) -> None:
    """Read from a configuration, it is recorded as if it had been given today."""
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(present({"net": text})))
    federation = federation_from(["--config", str(tmp_path / "config.yaml")])
    assert federation.net == NETS[text]
    assert yaml.safe_load(dump(federation))["net"] == present({"net": text})["net"]


@pytest.mark.parametrize("text", PROTOCOLS)
def test_every_protocol_of_before_is_known(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(present({"protocol": text})))
    federation = federation_from(["--config", str(tmp_path / "config.yaml")])
    assert federation.protocol == PROTOCOLS[text]
    assert yaml.safe_load(dump(federation))["protocol"] == present({"protocol": text})["protocol"]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"net": {"class_path": "rayfl.nets.LeNet"}, "protocol": {"class_path": "rayfl.evaluation.FDSE"}},
        {"net": "my_nets.make", "protocol": "FDSE"},
        {"net": "lenet(G=4)", "protocol": "fdse+wieghted"},
        {"net": "ViT(patch=x)", "protocol": "last_0"},
        {"net": "ViT(patch=8", "protocol": ""},
        {"net": [3, None], "protocol": None},
    ],
)
def test_what_is_not_of_before_stays_as_it_is(config: dict[str, Any]) -> None:
    assert present(config) == config


@pytest.mark.parametrize(
    ("name", "text", "shell", "python"),
    [
        ("net", "cnn-b", "--net CNNB,", "CNNB()"),
        ("net", "FDSE-AlexNet(G=4)", "--net FDSEAlexNet --net.G 4,", "FDSEAlexNet(G=4)"),
        ("net", "AlexNet-1024", "--net AlexNet --net.width 1024,", "AlexNet(width=1024)"),
        ("net", ["cnn", "CNN-3"], "write CNN,", "CNN()"),
        ("net", ["CNN-3"], "{class_path: FedGHCNN, init_args: {number: 3}},", "FedGHCNN(number=3)"),
        ("protocol", "fdse+weighted", "--protocol FDSE --protocol.average weighted,", "weighted')"),
        ("protocol", "last_5", "--protocol Default --protocol.choose last_k,", "Default(choose='last_k')"),
    ],
)
def test_the_message_has_the_form_of_today(name: str, text: Any, shell: str, python: str) -> None:
    assert shell in remedy(name, text)
    assert remedy(name, text).endswith(python)
    with pytest.raises(UserError, match="has another form now: write"):
        federation_from([f"--{name}", text if isinstance(text, str) else json.dumps(text)])


@pytest.mark.parametrize(("former", "now"), [(True, ["tensorboard"]), (False, [])])
def test_loggers_of_before_stay(former: bool, now: list[str]) -> None:
    assert present({"tensorboard": former}) == {"loggers": now}


def test_checkpoints_of_before_have_the_options_of_later() -> None:
    recorded = {"method": "rayfl.methods.PartialFed", "method.mode": "adaptive"}
    assert present_settings(recorded).items() >= {**recorded, "method.share": 1.0}.items()
    assert present_settings({**recorded, "method.share": 0.5})["method.share"] == 0.5
    assert "method.share" not in present_settings({"method": "rayfl.methods.FedAvg"})


# ---- run folders


def as_before(folder: Path, net: str | list[str], protocol: str) -> None:
    """Write net and protocol of a run as they were recorded before: in configuration and checkpoints."""
    path = folder / "config.yaml"
    config = yaml.safe_load(path.read_text()) | {"net": net, "protocol": protocol}
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    for path in (folder / "checkpoints").glob("manifest-*.json"):
        body = json.loads(path.read_text())["manifest"]
        others = {k: v for k, v in body["settings"].items() if k.partition(".")[0] not in ("net", "protocol")}
        body["settings"] = others | {"net": net, "protocol": protocol}
        text = json.dumps(body, separators=(",", ":"), sort_keys=True)
        path.write_text(json.dumps({"sha256": _hash(text.encode()), "manifest": body}))


OLD: list[tuple[Method, str | list[str], str]] = [
    (FDSE(), "DSE-CNN(G=4)", "fdse+weighted"),
    (DCPFL(), ["CNN-1", "CNN-5"], "after_training+last_3"),
]


@pytest.mark.parametrize(("method", "net", "protocol"), OLD)
def test_a_run_of_before_goes_on_and_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], method: Method, net: Any, protocol: str
) -> None:
    now = present({"net": net, "protocol": protocol})
    (tmp_path / "now.yaml").write_text(yaml.safe_dump(now))
    read = federation_from(["--config", str(tmp_path / "now.yaml")])
    settings: dict[str, Any] = {
        "method": method,
        "net": read.net,
        "protocol": read.protocol,
        "data": Synthetic(train=120, test=60, partition=IID(), val_fraction=0.2),
        "engine": Inline(),
        "checkpoint_every": 1,
    }
    small(tmp_path / "whole", rounds=3, **settings).run()
    small(tmp_path / "half", rounds=2, **settings).run()
    old = tmp_path / "half"
    as_before(old, net, protocol)
    assert Result.load(old).protocol == read.protocol
    assert load_models(old).round == 2
    assert report.main([str(old)]) == 0
    assert f"Protocol {read.protocol}" in " ".join(capsys.readouterr().out.split())
    going_on = resumed(old)
    going_on.rounds = 3
    going_on.run()
    assert bytes_of_run(old) == bytes_of_run(tmp_path / "whole")
    shutil.rmtree(old)


@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_training_of_before_goes_on(tmp_path: Path, decay: float) -> None:
    """With ``lr_decay`` for a schedule, ``tensorboard`` for loggers; no optimiser, sampling or metrics."""
    schedule: Schedule = Constant() if decay == 1 else Exponential(decay=decay)
    training = Training(lr=0.05, batch_size=20, momentum=0.5, schedule=schedule)
    small(tmp_path / "whole", rounds=3, training=training, checkpoint_every=1).run()
    small(tmp_path / "half", rounds=2, training=training, checkpoint_every=1).run()
    old = tmp_path / "half"
    config = yaml.safe_load((old / "config.yaml").read_text())
    now = dict(config["training"])
    new = [key for key in now if key.startswith(("schedule", "optimiser"))]
    for key in new:
        del config["training"][key]
    config["training"]["lr_decay"] = decay
    del config["sampling"], config["metrics"], config["loggers"]
    config["tensorboard"] = False
    (old / "config.yaml").write_text(yaml.safe_dump(config))
    assert present(config)["training"] == now
    for path in (old / "checkpoints").glob("manifest-*.json"):
        body = json.loads(path.read_text())["manifest"]
        prefixes = tuple(f"training.{key}" for key in new)
        body["settings"] = {k: v for k, v in body["settings"].items() if not k.startswith(prefixes)}
        body["settings"]["training.lr_decay"] = decay
        del body["settings"]["sampling"], body["settings"]["metrics"]
        text = json.dumps(body, separators=(",", ":"), sort_keys=True)
        path.write_text(json.dumps({"sha256": _hash(text.encode()), "manifest": body}))
    going_on = resumed(old, ["--rounds", "3"])
    assert going_on.loggers == []
    going_on.run()
    assert bytes_of_run(old) == bytes_of_run(tmp_path / "whole")


# ---- data


@pytest.mark.parametrize("name", ["Synthetic", "EmbeddedDigits"])
def test_options_that_were_never_used_are_left_out(tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    small = ["--data.train", "60", "--data.test", "20"] if name == "Synthetic" else []
    options = f"--data {name} --clients 2 --net LeNet --engine Inline --checkpoint_every 1"
    assert main([*options.split(), *small, "--rounds", "1", "--output", str(run)]) == 0
    config = yaml.safe_load((run / "config.yaml").read_text())
    former = config["data"].get("init_args", {}) | {"root": None, "verify": True}
    config["data"]["init_args"] = former
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert main(["--resume", str(run), "--rounds", "2"]) == 0
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2


def test_what_is_used_stays() -> None:
    for data in ({"class_path": "rayfl.data.MNIST", "init_args": {"root": "X"}}, "Synthetic", None):
        assert without_unused({"data": data}) == {"data": data}
    assert without_unused({"data": {"class_path": "rayfl.data.Synthetic", "init_args": 3}})
