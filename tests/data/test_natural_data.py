"""Data sets with users: writers, and files of LEAF."""

import json

import numpy as np
from sklearn.datasets import load_digits

from rayfl.data import TEST, TRAIN, LEAFFiles, WriterDigits
from rayfl.data.sets.leaf_files import CHARACTERS, encoded
from rayfl.data.sets.writer_digits import STARTS
from rayfl.errors import Conflict
from tests.support.refusals import refused

# --- WriterDigits
# ----------------------------------------------------------------------------------------------


def test_forms_ask_for_the_same_digits():
    """Of 14 stretches, 13 are what the first form asks for but for digits that were dropped; one has another
    last digit."""
    text = "".join(map(str, load_digits().target))
    forms = [text[a:b] for a, b in zip(STARTS, [*STARTS[1:], len(text)])]

    def dropped(form):
        rest = iter(forms[0])
        return all(digit in rest for digit in form)

    assert [dropped(form) for form in forms].count(False) == 1
    assert dropped(forms[2][:-1])
    assert (len(forms[0]), min(map(len, forms))) == (130, 122)


def test_rows_of_a_form():
    dataset = WriterDigits(labelled=30).load()
    np.testing.assert_array_equal(dataset.inputs * 16, load_digits().data)
    assert dataset.inputs.dtype == np.float32
    assert np.bincount(dataset.users[dataset.origin == TRAIN]).tolist() == [30] * 14
    for client in WriterDigits().federate(14, 0).clients:
        assert sorted(dataset.labels[client.train]) == list(range(10))
        assert client.train.max() < client.test.min()


# --- LEAFFiles
# -------------------------------------------------------------------------------------------------


def spelled(classes):
    return "".join("?" if c == len(CHARACTERS) else CHARACTERS[c] for c in classes)


def test_characters_and_classes():
    text = "\n ~A\té\x00"
    assert encoded(text).tolist() == [0, 1, 95, 34, 96, 96, 96]
    assert encoded(text).dtype == np.int64


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
    train = [leaf(b=numbers(0.1, 0.2, y=[3.0, 1.0])), leaf(a=numbers(0.3))]
    data = write_leaf(tmp_path, train, [leaf(a=numbers(0.4, 0.5), c=numbers(0.6))])
    (tmp_path / "train" / "._0.json").write_bytes(b"\0\5\x16\7")  # what systems leave is skipped
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
