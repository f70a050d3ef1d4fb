"""Data sets with users: modules of Python, writers, and files of LEAF."""

import json
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from rayfl import Federation, Inline, Ray
from rayfl.commands.run import federation_from
from rayfl.data import IID, TEST, TRAIN, ByUser, Dirichlet, LEAFFiles, StdlibText, WriterDigits
from rayfl.data.sets.stdlib_text import CHARACTERS, encoded
from rayfl.data.sets.writer_digits import STARTS
from rayfl.errors import BadValue, Conflict, Missing, Shortage
from rayfl.methods import Ditto, FedAvg, FedPer, Local
from rayfl.nets import SplitNet
from tests.support.examples import EXAMPLES
from tests.support.examples import example as load_example
from tests.support.federations import bytes_of_run
from tests.support.refusals import refused

example = load_example("natural_users.py")


def source(module):
    text = Path(sysconfig.get_path("stdlib"), f"{module}.py").read_text(encoding="utf-8")
    return "".join(c if c in CHARACTERS else "?" for c in text)


def spelled(classes):
    return "".join("?" if c == len(CHARACTERS) else CHARACTERS[c] for c in classes)


# --- StdlibText
# ------------------------------------------------------------------------------------------------


def test_characters_and_classes():
    text = "\n ~A\té\x00"
    assert encoded(text).tolist() == [0, 1, 95, 34, 96, 96, 96]
    assert encoded(text).dtype == np.int64
    assert len(StdlibText(modules=["csv"]).load().class_names) == 97


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
        ({"modules": ["argpars"]}, Missing, "argpars.py"),
        ({"modules": ["email"]}, Missing, "email.py"),
        ({"modules": []}, Conflict, "data.length"),
        ({"modules": ["csv"], "length": 100_000}, Conflict, "data.length"),
        ({"length": 10**9}, Conflict, "data.length"),
        ({"length": 0}, BadValue, "data.length"),
        ({"stride": 0}, BadValue, "data.stride"),
        ({"samples": 0}, BadValue, "data.samples"),
        ({"samples": 10**12}, Shortage, ""),
    ],
)
def test_impossible_texts_are_refused(options, kind, place):
    with refused(kind, place):
        StdlibText(**options).load()


# --- WriterDigits
# ----------------------------------------------------------------------------------------------


def test_forms_ask_for_the_same_digits():
    """Of 14 stretches, 13 are what the first form asks for but for digits that were dropped; one has another
    last digit."""
    text = "".join(map(str, load_digits().target))
    forms = [text[a:b] for a, b in zip(STARTS, [*STARTS[1:], len(text)])]
    asked = forms[0]

    def dropped(form):
        rest = iter(asked)
        return all(digit in rest for digit in form)

    assert len(asked) == 130
    assert [dropped(form) for form in forms].count(False) == 1
    assert dropped(forms[2][:-1])
    assert min(map(len, forms)) == 122


def test_rows_of_a_form():
    dataset = WriterDigits(labelled=30).load()
    np.testing.assert_array_equal(dataset.inputs * 16, load_digits().data)
    assert dataset.inputs.dtype == np.float32
    assert np.bincount(dataset.users[dataset.origin == TRAIN]).tolist() == [30] * 14
    for client in WriterDigits().federate(14, 0).clients:
        assert sorted(dataset.labels[client.train]) == list(range(10))
        assert client.train.max() < client.test.min()


@pytest.mark.parametrize("labelled", [9, 101])
def test_impossible_numbers_of_digits_are_refused(labelled):
    with refused(BadValue, "data.labelled"):
        WriterDigits(labelled=labelled)


# --- learning
# --------------------------------------------------------------------------------------------------


def test_sharing_helps_to_predict_text():
    methods = (Local(), FedPer(), FedAvg())
    alone, partly, together = (example.accuracy("modules", method) for method in methods)
    assert alone > 0.3  # the space alone is a quarter of the text
    assert partly > alone + 0.03
    assert together > alone + 0.07


def test_sharing_helps_to_read_a_few_digits():
    methods = (Local(), FedAvg(), Ditto())
    alone, together, both = (example.accuracy("writers", method) for method in methods)
    assert alone > 0.75
    assert together > alone + 0.03
    assert both > together


@pytest.mark.parametrize("users", ["modules", "writers"])
def test_a_resumed_run_is_the_run(tmp_path, users):
    def federation(name, rounds):
        settings = example.SETTINGS[users] | {"rounds": rounds, "engine": Inline(), "checkpoint_every": 1}
        return Federation(method=FedPer(), quiet=True, output=str(tmp_path / name), **settings)

    federation("whole", 2).run()
    federation("again", 1).run()
    federation("again", 2).resume(tmp_path / "again").run()
    assert bytes_of_run(tmp_path / "whole") == bytes_of_run(tmp_path / "again")


def test_the_example_of_modules_can_be_run():
    federation = federation_from(["--config", str(EXAMPLES / "modules.yaml")])
    data = federation.federated_data()
    assert data.counts("train").tolist() == [1000] * 20
    assert federation.check(data) == []


def text_net(shape, classes) -> SplitNet:
    """The example's, where actors find it."""
    return example.TextNet().build(shape, classes)


def test_actors_give_what_one_process_gives(tmp_path, kept_actors):
    settings = example.SETTINGS["modules"] | {"net": f"{__name__}.text_net", "rounds": 1, "quiet": True}
    for name, engine in (("inline", Inline()), ("ray", Ray(actors=2))):
        Federation(method=FedAvg(), **settings, engine=engine, output=str(tmp_path / name)).run()
    assert bytes_of_run(tmp_path / "inline", settings=False) == bytes_of_run(tmp_path / "ray", settings=False)


# --- LEAFFiles
# -------------------------------------------------------------------------------------------------


def leaf(**users):
    return {
        "users": list(users),
        "num_samples": [len(given["y"]) for given in users.values()],
        "user_data": users,
    }


def write_leaf(folder, train, test):
    for name, files in (("train", train), ("test", test)):
        (folder / name).mkdir(parents=True)
        for number, content in enumerate(files):
            (folder / name / f"all_data_{number}.json").write_text(json.dumps(content))
    return LEAFFiles(root=str(folder))


def numbers(*values, y=None):
    return {"x": [[value, value / 2, 0, 1] for value in values], "y": y or [0] * len(values)}


def test_numbers_of_leaf(tmp_path):
    train = [leaf(b=numbers(0.1, 0.2, y=[3, 1])), leaf(a=numbers(0.3))]
    data = write_leaf(tmp_path, train, [leaf(a=numbers(0.4, 0.5), c=numbers(0.6))])
    dataset = data.load()
    np.testing.assert_array_equal(dataset.inputs[:, 0], np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], np.float32))
    assert dataset.inputs.dtype == np.float32
    assert dataset.user_names == ("b", "a", "c")
    assert dataset.users.tolist() == [0, 0, 1, 1, 1, 2]
    assert dataset.origin.tolist() == [TRAIN] * 3 + [TEST] * 3
    assert dataset.labels.tolist() == [2, 1, 0, 0, 0, 0]
    assert dataset.class_names == ("0", "1", "3")
    shaped = LEAFFiles(root=str(tmp_path), shape=(1, 2, 2)).load()
    assert shaped.inputs[0].tolist() == dataset.inputs[0].reshape(1, 2, 2).tolist()


def test_users_without_training_samples_are_no_clients(tmp_path, caplog):
    data = write_leaf(tmp_path, [leaf(a=numbers(1, 2), b=numbers(3))], [leaf(c=numbers(4), a=numbers(5))])
    one, two = data.federate(2, 0).clients
    assert (len(one.train), len(one.test), len(two.train), len(two.test)) == (2, 1, 1, 0)
    assert "1 of 3 users" in caplog.text
    with refused(Conflict, "clients"):
        LEAFFiles(root=str(tmp_path)).federate(3, 0)


def test_text_of_leaf(tmp_path):
    speech = {"x": ["to be", "o be,"], "y": [",", " "]}
    dataset = write_leaf(tmp_path, [leaf(HAMLET=speech)], [leaf(HAMLET=speech)]).load()
    assert [spelled(x) for x in dataset.inputs[:2]] == speech["x"]
    assert spelled(dataset.labels[:2]) == ", "
    assert dataset.classes == 97


def test_other_partitions_take_data_with_users():
    for partition in (IID(), Dirichlet(min_samples=0)):
        divided = WriterDigits(partition=partition).federate(3, 0)
        assert divided.counts("train").sum() == 140


def test_labels_of_leaf_may_be_written_with_a_point(tmp_path):
    """And what systems leave among the files is skipped."""
    data = write_leaf(tmp_path, [leaf(a=numbers(1, 2, y=[0.0, 1.0]))], [leaf(a=numbers(3, y=[1.0]))])
    (tmp_path / "train" / "._0.json").write_bytes(b"\0\5\x16\7")
    assert data.load().labels.tolist() == [0, 1, 1]
