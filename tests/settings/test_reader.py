"""Names, files and words that the reader of settings takes, and what it makes of them."""

from pathlib import Path

import pytest
import yaml

from rayfl.errors import BadCode, BadValue, Conflict
from rayfl.settings import imports
from rayfl.settings.description import flatten_config
from rayfl.settings.imports import import_by_path
from rayfl.settings.reader import RawText, flatten_settings
from rayfl.settings.yaml_file import parse_yaml
from rayfl.training import Training
from tests.support.federations import federation_from
from tests.support.refusals import refused


def test_a_group_is_a_mapping_or_a_file_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("lr: 0.25\nbatch_size: 7\n")
    wanted = {"training.lr": 0.25, "training.batch_size": 7}
    for given in ("mine.yaml", {"lr": 0.25, "batch_size": 7}, RawText("{lr: 0.25, batch_size: 7}")):
        assert flatten_settings({"training": given}, tmp_path) == wanted
    assert flatten_settings({"training": RawText(tmp_path / "mine.yaml")}) == wanted
    for wrong in (RawText("mine.yaml"), 3, {1: 2}):  # a file is looked for where the command was given
        with refused(BadValue, "training"):
            flatten_settings({"training": wrong})
    with refused(Conflict, "training.lr"):
        flatten_settings({"training": {"lr": 1}, "training.lr": 2})


def test_a_configuration_by_the_names_of_the_command_line() -> None:
    config = {
        "method": {"class_path": "rayfl.methods.FedProx", "init_args": {"mu": 0.5}},
        "metrics": ["f1", "auroc"],
        "training": {"lr": 0.1, "optimiser": {"class_path": "rayfl.training.Adam"}},
    }
    plain = flatten_config(config)
    assert plain == {
        "method": "rayfl.methods.FedProx",
        "method.mu": 0.5,
        "metrics": ["f1", "auroc"],
        "training.lr": 0.1,
        "training.optimiser": "rayfl.training.Adam",
    }
    shown = flatten_config(config, shown=True)
    assert (shown["method"], shown["metrics"], shown["training.optimiser"]) == (
        "FedProx",
        '["f1", "auroc"]',
        "Adam",
    )


def test_a_class_of_the_main_process_is_found_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(imports.NAMED_ELSEWHERE, "__main__.Mine", Training)
    assert import_by_path("__main__.Mine") is Training


def test_yaml_has_plain_values_alone() -> None:
    assert parse_yaml("[1e-3, 08, 2020-01-01, yes, null, a]") == [0.001, 8, "2020-01-01", True, None, "a"]
    for odd in ("!!python/name:os.system", "!!set {a, b}", "!!binary aGk=", "!!timestamp 2020-01-01"):
        with pytest.raises(yaml.YAMLError):
            parse_yaml(odd)


def test_options_without_a_class_are_those_of_the_default() -> None:
    run = federation_from(["--training.optimiser.nesterov", "true", "--training.momentum", "0.5"])
    assert str(run.training.optimiser) == "SGD(nesterov=True)"
    assert str(federation_from([]).training.optimiser) == "SGD"


def test_settings_do_not_change() -> None:
    with refused(BadCode, "Training.lr"):
        Training().lr = 3.0
