"""Configurations of before are read as if they had been written today."""

import pytest
import yaml

from rayfl.record.former import without_unused
from rayfl.run import main


@pytest.mark.parametrize("name", ["Synthetic", "EmbeddedDigits"])
def test_a_run_of_before_resumes(tmp_path, name):
    run = tmp_path / "run"
    small = ["--data.train", "60", "--data.test", "20"] if name == "Synthetic" else []
    options = f"--data {name} --clients 2 --net lenet --engine Inline --checkpoint_every 1"
    assert main([*options.split(), *small, "--rounds", "1", "--output", str(run)]) == 0
    config = yaml.safe_load((run / "config.yaml").read_text())
    former = config["data"].get("init_args", {}) | {"root": None, "verify": True}
    config["data"]["init_args"] = former
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert main(["--resume", str(run), "--rounds", "2"]) == 0
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2


def test_what_is_used_stays():
    for data in ({"class_path": "rayfl.data.MNIST", "init_args": {"root": "X"}}, "Synthetic", None):
        assert without_unused({"data": data}) == {"data": data}
    assert without_unused({"data": {"class_path": "rayfl.data.Synthetic", "init_args": 3}})
