"""Text with natural users, an example of a data set of one's own: what is read, and what sharing gains."""

import sysconfig
from pathlib import Path

import numpy as np
import pytest

from rayfl import Federation, Inline
from rayfl.data import TEST, TRAIN, ByUser
from rayfl.data.sets.leaf_files import CHARACTERS
from rayfl.errors import BadValue, Conflict
from rayfl.methods import Ditto, FedAvg, FedPer, Local
from tests.support.examples import EXAMPLES
from tests.support.examples import example as load_example
from tests.support.federations import bytes_of_run, federation_from
from tests.support.refusals import refused

example = load_example("natural_users.py")
StdlibText = example.StdlibText


def source(module):
    text = Path(sysconfig.get_path("stdlib"), f"{module}.py").read_text(encoding="utf-8")
    return "".join(c if c in CHARACTERS else "?" for c in text)


def spelled(classes):
    return "".join("?" if c == len(CHARACTERS) else CHARACTERS[c] for c in classes)


def test_windows_are_of_the_text_and_never_cross_the_split():
    """Every window and its label lie in the module, training ones in its first 80 %."""
    data = StdlibText(length=20, stride=7, samples=10**6, modules=["csv", "bisect"])
    dataset = data.load()
    assert dataset.inputs.dtype == np.int64
    assert dataset.inputs.shape[1:] == (20,)
    assert dataset.user_names == ("csv", "bisect")
    for user, module in enumerate(dataset.user_names):
        text = source(module)
        cut = int(0.8 * len(text))
        for origin, part in ((TRAIN, text[:cut]), (TEST, text[cut:])):
            mine = np.flatnonzero((dataset.users == user) & (dataset.origin == origin))
            starts = range(0, len(part) - 20, 7)
            assert len(mine) == len(starts)
            for index, start in zip(mine[::50], starts[::50]):
                assert spelled(dataset.inputs[index]) == part[start : start + 20]
                assert spelled(dataset.labels[[index]]) == part[start + 20]
            assert spelled(dataset.inputs[mine[-1]]) == part[starts[-1] : starts[-1] + 20]


def test_samples_are_capped_and_spread():
    dataset = StdlibText(length=5, samples=40, modules=["argparse"]).load()
    text = source("argparse")
    cut = int(0.8 * len(text))
    for origin, part, count in ((TRAIN, text[:cut], 40), (TEST, text[cut:], 10)):
        mine = np.flatnonzero(dataset.origin == origin)
        assert len(mine) == count
        gap = (len(part) - 5) / count
        for k, index in enumerate(mine):
            start = int(k * gap)
            assert spelled(dataset.inputs[index]) == part[start : start + 5]


def test_all_modules_and_a_client_per_module():
    data = StdlibText(length=16, samples=20)
    dataset = data.load()
    assert {*example.MODULES, "this"} <= set(dataset.user_names)
    assert not any(name.startswith("_") for name in dataset.user_names)
    assert np.bincount(dataset.users).min() >= 2
    assert dataset.digest() == StdlibText(length=16, samples=20).load().digest()
    divided = data.federate(len(dataset.user_names), 0)
    assert isinstance(data.partition, ByUser)
    assert [int(dataset.users[c.train[0]]) for c in divided.clients] == list(range(len(dataset.user_names)))


@pytest.mark.parametrize(
    ("options", "kind", "place"),
    [
        ({"modules": ["csv"], "length": 100_000}, Conflict, "data.length"),
        ({"length": 0}, BadValue, "data.length"),
        ({"stride": 0}, BadValue, "data.stride"),
        ({"samples": 0}, BadValue, "data.samples"),
    ],
)
def test_impossible_texts_are_refused(options, kind, place):
    with refused(kind, place):
        StdlibText(**options).load()


@pytest.mark.slow
def test_sharing_helps_to_predict_text():
    methods = (Local(), FedPer(), FedAvg())
    alone, partly, together = (example.accuracy("modules", method) for method in methods)
    assert alone > 0.3  # the space alone is a quarter of the text
    assert partly > alone + 0.03
    assert together > alone + 0.07


@pytest.mark.slow
def test_sharing_helps_to_read_a_few_digits():
    methods = (Local(), FedAvg(), Ditto())
    alone, together, both = (example.accuracy("writers", method) for method in methods)
    assert alone > 0.75
    assert together > alone + 0.03
    assert both > together


def test_a_resumed_run_is_the_run(tmp_path):
    def federation(name, rounds):
        settings = example.SETTINGS["modules"] | {"rounds": rounds, "engine": Inline(), "checkpoint_every": 1}
        return Federation(method=FedPer(), quiet=True, output=str(tmp_path / name), **settings)

    federation("whole", 2).run()
    federation("again", 1).run()
    federation("again", 2).resume(tmp_path / "again").run()
    assert bytes_of_run(tmp_path / "whole") == bytes_of_run(tmp_path / "again")


def test_the_example_of_modules_can_be_run(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    federation = federation_from(["--config", str(EXAMPLES / "modules.yaml")])
    data = federation.federated_data()
    assert data.counts("train").tolist() == [1000] * 20
    assert federation.check(data) == []
