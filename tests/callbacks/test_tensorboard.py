"""TensorBoard events hold what the records hold."""

import numpy as np
import pytest

from rayfl.callbacks.loggers import TensorBoard
from rayfl.running.result import Result
from tests.support.records import MadeUpRun, partition, record, write_run


def test_a_resume_writes_the_rounds_that_the_log_lacks(tmp_path):
    """As after a run that was killed, or went on without the logger for some rounds."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = MadeUpRun(write_run(tmp_path / "run", rounds=4, eval_every=1))
    whole = list(run.records())
    first, second = TensorBoard(), TensorBoard()
    first.start(run, 0)
    for number in range(2):
        first.after_round(run, whole[number])
    first.end()
    assert not second.start(run, 4)
    second.end()
    found = accumulator.EventAccumulator(str(run.path / "tensorboard")).Reload()
    assert [event.step for event in found.Scalars("train/loss")] == [0, 1, 2, 3]


def test_going_back_replaces_the_rounds_after_it(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = MadeUpRun(write_run(tmp_path / "run", rounds=4, eval_every=1))
    split = partition(6)
    events = TensorBoard()
    assert not events.start(run, 0)
    for number in range(3):
        assert not events.after_round(run, record(number, split, seed=9 * (number == 2)))
    events.start(run, 2)
    for number in (2, 3):
        events.after_round(run, record(number, split))
    events.end()
    everything = {"scalars": 0, "histograms": 0}
    found = accumulator.EventAccumulator(str(run.path / "tensorboard"), everything).Reload()
    tag = "accuracy/test/after_aggregation/personal/mean"
    others = {"train/loss", "bytes/up", "bytes/down", "accuracy/val/after_aggregation/global/pooled"}
    assert set(found.Tags()["scalars"]) >= {tag, *others}
    assert [event.step for event in found.Scalars(tag)] == [0, 1, 2, 3]
    histograms = found.Histograms("accuracy/test/after_aggregation/personal")
    assert [(event.step, event.histogram_value.num) for event in histograms] == [(n, 6) for n in range(4)]
    expected = Result.load(run.path).rounds["test/after_aggregation/personal"]
    np.testing.assert_allclose([event.value for event in found.Scalars(tag)], expected, rtol=1e-6)
