"""Text with natural users, an example of a data set of one's own: what is read, and what sharing gains."""

import sysconfig
from pathlib import Path

import numpy as np
import pytest

from rayfl.data import TEST, TRAIN, ByUser
from rayfl.data.sets.leaf_files import CHARACTERS
from rayfl.errors import BadValue, Conflict
from rayfl.methods import Ditto, FedAvg, FedPer, Local
from tests.support.examples import EXAMPLES
from tests.support.examples import example as load_example
from tests.support.federations import federation_from
from tests.support.refusals import refused

example = load_example("natural_users.py")
StdlibText = example.StdlibText


def source(module):
    text = Path(sysconfig.get_path("stdlib"), f"{module}.py").read_text(encoding="utf-8")
    return "".join(c if c in CHARACTERS else "?" for c in text)


def spelled(classes):
    return "".join("?" if c == len(CHARACTERS) else CHARACTERS[c] for c in classes)


@pytest.mark.parametrize(("options", "counts"), [({"stride": 7}, (None, None)), ({"samples": 40}, (40, 10))])
def test_windows_are_of_the_text_and_never_cross_the_split(options, counts):
    """Every window and its label lie in the module, training ones in its first 80 %; fewer are spread."""
    dataset = StdlibText(**{"length": 20, "samples": 10**6, "modules": ["csv", "bisect"]} | options).load()
    assert dataset.inputs.dtype == np.int64
    assert dataset.user_names == ("csv", "bisect")
    for user, module in enumerate(dataset.user_names):
        text = source(module)
        cut = int(0.8 * len(text))
        for origin, part, count in ((TRAIN, text[:cut], counts[0]), (TEST, text[cut:], counts[1])):
            mine = np.flatnonzero((dataset.users == user) & (dataset.origin == origin))
            last = len(part) - 20
            starts = [int(k * last / count) for k in range(count)] if count else range(0, last, 7)
            windows = [part[start : start + 21] for start in starts]
            assert [spelled([*dataset.inputs[k], dataset.labels[k]]) for k in mine] == windows


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
@pytest.mark.parametrize(("users", "least", "gain"), [("modules", 0.3, 0.07), ("writers", 0.75, 0.03)])
def test_sharing_helps(users, least, gain):
    """To predict text, of which the space alone is a quarter, and to read a few digits."""
    methods = (Local(), FedAvg(), FedPer() if users == "modules" else Ditto())
    alone, together, partly = (example.accuracy(users, method) for method in methods)
    assert alone > least
    assert together > alone + gain
    assert partly > alone + 0.03


def test_the_example_of_modules_can_be_run(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    federation = federation_from(["--config", str(EXAMPLES / "modules.yaml")])
    data = federation.federated_data()
    assert data.counts("train").tolist() == [1000] * 20
    assert federation.check(data) == ([], "")
