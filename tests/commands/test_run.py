"""The command line: what a user types, and what he is told when it cannot work."""

import errno
from pathlib import Path

import pytest
import yaml

from rayfl import Federation
from rayfl.errors import InUse, Missing
from rayfl.run import main
from rayfl.running.result import Result
from rayfl.running.run import FederationRun
from rayfl.settings.description import dump_config
from tests.support.federations import federation_from, records_of
from tests.support.refusals import told

TINY = ["--engine", "Inline", "--data", "Synthetic", "--data.train", "200", "--data.test", "60"]
TINY += ["--net", "LeNet", "--rounds", "2", "--loggers", "[]"]


def test_a_run_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "run"
    options = ["--method", "FedCO2", "--method.intra", "none", "--method.inter", "none", "--clients", "10"]
    options += ["--data.partition", "Dirichlet", "--data.partition.alpha", "0.3", "--participation", "0.3"]
    options += ["--data.partition.min_samples", "1"]
    assert main([*TINY, *options, "--output", str(output)]) == 0
    shown = capsys.readouterr().out
    for word in ("Fed-CO2", "Dirichlet", "round 2/2", "worst decile", "online", "offline", str(output)):
        assert word in shown
    config = yaml.safe_load((output / "config.yaml").read_text())
    assert config["method"]["init_args"]["intra"] == "none"
    assert config["data"]["init_args"]["partition"]["init_args"]["alpha"] == 0.3
    assert config["engine"]["init_args"]["memory_format"] == "channels_last"
    assert [len(record["cohort"]) for record in records_of(output)] == [3, 3]
    for name in ("environment.json", "partition.json", "engine.jsonl", "clients.parquet", "summary.json"):
        assert (output / name).exists()


def test_config_of_a_run_runs_again_to_the_same_bytes(tmp_path: Path) -> None:
    assert main([*TINY, "--output", str(tmp_path / "a"), "--method", "SCAFFOLD"]) == 0
    config = str(tmp_path / "a" / "config.yaml")
    assert main(["--config", config, "--output", str(tmp_path / "b")]) == 0
    assert (tmp_path / "a" / "metrics.jsonl").read_bytes() == (tmp_path / "b" / "metrics.jsonl").read_bytes()


def test_defaults_are_those_of_the_quickstart() -> None:
    quickstart = Path(__file__).parents[2] / "examples" / "quickstart.yaml"
    assert dump_config(federation_from(["--config", str(quickstart)])) == dump_config(Federation(clients=5))
    assert dump_config(federation_from([])) == dump_config(Federation())


def test_a_gpu_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with told(Missing, "engine.device"):
        assert main([*TINY, "--engine.device", "cuda", "--output", str(tmp_path / "run")]) == 2
    assert not (tmp_path / "run").exists()


def test_an_existing_run_folder_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with told(InUse, tmp_path):
        assert main([*TINY, "--output", str(tmp_path)]) == 2
    assert "--resume" not in capsys.readouterr().err, "there is no run"
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_resume_prints_or_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--output", str(tmp_path / "run")]) == 0
    with pytest.raises(SystemExit):  # when it has printed, and run nothing
        main(["--resume", str(tmp_path / "run"), "--rounds", "4", "--print_config"])
    assert "rounds: 4" in capsys.readouterr().out
    assert main(["--resume", str(tmp_path / "run"), "--rounds", "3"]) == 0
    assert len(Result.load(tmp_path / "run").rounds) == 3


def test_a_full_disk_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever library has met it, and whatever it raises then."""

    def full(folder: object) -> None:
        raise ValueError("no table") from OSError(errno.ENOSPC, "no bytes written")

    monkeypatch.setattr("rayfl.running.run.finish_records", full)
    assert main([*TINY, "--output", str(tmp_path / "run")]) == 2
    line = f"No space left on device: make room; then go on with --resume {tmp_path / 'run'}"
    assert capsys.readouterr().err.splitlines()[-1] == f"rayfl: error: {line}"


def test_an_interrupt_before_the_first_round(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(run: FederationRun) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FederationRun, "run", interrupted)
    assert main(TINY) == 130
    assert capsys.readouterr().err == "rayfl: interrupted\n"
