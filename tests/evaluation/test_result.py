import math

import numpy as np
import pandas as pd
import pytest

from rayfl import evaluation
from rayfl.record.folder import RunFolder
from rayfl.running.result import Result, finish_records
from tests.support.records import partition, record, write_run


def test_the_client_table_holds_every_score_once(tmp_path):
    result = Result.load(write_run(tmp_path / "run", rounds=4, clients=3, eval_every=2))
    table = result.clients
    columns = ["round", "point", "view", "part", "client", "domain", "samples", "score", "figure", "loss"]
    assert list(table.columns) == columns
    assert len(table) == 2 * 2 * 2 * 3  # rounds 1 and 3, two views, two parts, three clients
    assert not table.duplicated(["round", "point", "view", "part", "client"]).any()
    made = record(3, partition(3))["evaluation"]["after_aggregation"]["global"]["test"]
    rows = table[(table["round"] == 3) & (table["view"] == "global") & (table["part"] == "test")]
    assert rows["score"].tolist() == made["score"]
    assert rows["loss"].tolist() == made["loss"]
    assert rows["domain"].tolist() == ["ink", "print", "ink"]
    np.testing.assert_allclose(rows["figure"], np.array(made["score"]) / [20, 21, 22])


def test_clients_without_data_or_score_have_no_row(tmp_path):
    split = partition(4)
    split["clients"][1]["test"] = 0
    split["clients"][3]["domain"] = None
    made = record(0, split, views=("personal",))
    scores = {"score": [5, None, None, 7], "loss": [0.5, None, None, None]}
    made["evaluation"]["after_aggregation"]["personal"]["test"] = scores
    folder = RunFolder.create(tmp_path / "run", "rounds: 1\n")
    folder.write_partition(split)
    folder.append_metrics(made)
    result = finish_records(folder)
    tests = result.clients[result.clients["part"] == "test"]
    assert tests["client"].tolist() == [0, 3]
    assert tests["domain"].isna().tolist() == tests["loss"].isna().tolist() == [False, True]
    headline = result.summary["headline"]
    assert (headline["clients"], headline["left_out"]) == (2, 2)
    stored = pd.read_parquet(folder.path / "clients.parquet")
    assert stored["domain"].isna().sum() == result.clients["domain"].isna().sum() == 2


def test_the_round_table_has_all_rounds(tmp_path):
    """The round table has all rounds and accuracies where evaluated."""
    result = Result.load(write_run(tmp_path / "run", rounds=5, clients=4, eval_every=2))
    assert result.rounds["round"].tolist() == [0, 1, 2, 3, 4]
    assert result.rounds["up"].tolist() == [2000] * 5
    assert result.rounds["down"].tolist() == [4000] * 5
    accuracy = result.rounds["test/after_aggregation/personal"]
    assert accuracy.isna().tolist() == [True, False, True, False, False]
    assert accuracy.iloc[-1] == result.figure == result.summary["headline"]["figure"]


def test_a_killed_run_can_be_read(tmp_path):
    result = Result.load(write_run(tmp_path / "run", rounds=10, stop_after=3))
    assert result.scored() is result
    assert result.scored(view="global").figure != result.figure
    assert not result.complete
    assert result.summary["completed"] == 3
    assert result.clients["round"].unique().tolist() == [1]
    assert result.figure == result.clients.query("view == 'personal' and part == 'test'")["figure"].mean()


def test_a_run_that_never_evaluated_has_no_accuracy(tmp_path):
    for run in (write_run(tmp_path / "a", stop_after=0), write_run(tmp_path / "b", eval_every=0)):
        result = Result.load(run)
        assert math.isnan(result.figure)
        assert result.clients.empty
        assert len(result.rounds) == result.summary["completed"]


def test_the_protocol_of_the_configuration_is_used(tmp_path):
    run = write_run(tmp_path / "run", protocol=evaluation.FediOS(), rounds=8, eval_every=100)
    result = Result.load(run)
    assert result.protocol == evaluation.FediOS()
    assert result.summary["headline"]["rounds"] == [3, 4, 5, 6, 7]
    assert result.figure == pytest.approx(result.rounds["test/after_training/personal"].mean())
