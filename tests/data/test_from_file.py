"""Divisions that are written to a file and read from one."""

import json

import numpy as np
import pytest

from rayfl.commands.data import main
from rayfl.data import IID, Dirichlet, FromFile, Pathological, Synthetic
from rayfl.errors import Conflict
from tests.support.datasets import ORIGIN, make_dataset, matrix
from tests.support.federations import small
from tests.support.refusals import refused


def tiny(partition=None, **options):
    return Synthetic(**{"train": 90, "test": 30, "shape": (1, 2, 2), "partition": partition} | options)


@pytest.mark.parametrize("partition", [IID(), Dirichlet(min_samples=0), Pathological(split="pooled")])
def test_what_is_written_is_read(tmp_path, partition):
    path = tmp_path / "new" / "division.json"
    written = tiny(partition, train=900, test=300, val_fraction=0.2).federate(5, 3)
    written.write_indices(path)
    content = json.loads(path.read_text())
    assert content["dataset"] == {"name": "Synthetic", "sha256": written.contents["sha256"]}
    assert content["clients"] == [
        {"train": c.train.tolist(), "val": c.val.tolist(), "test": c.test.tolist()} for c in written.clients
    ]
    read = tiny(FromFile(path=str(path)), train=900, test=300).federate(5, 0)
    assert read.digest() == written.digest()
    told, known = read.describe(), written.describe()
    assert told.pop("settings") != known.pop("settings")
    assert told == known


def test_a_run_is_the_same_with_the_division_from_a_file(tmp_path):
    """And goes on where it was, from the file; but not with another division."""
    settings = {"rounds": 1, "checkpoint_every": 1}
    plain = small(tmp_path / "plain", **settings | {"rounds": 2})
    path = tmp_path / "division.json"
    plain.federated_data().write_indices(path)
    data = Synthetic(train=900, test=240, shape=(3, 20, 20), partition=FromFile(path=str(path)))
    plain.run()
    small(tmp_path / "again", data=data, **settings).run()
    small(tmp_path / "again", data=data, **settings | {"rounds": 2}).resume(tmp_path / "again").run()
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("plain", "again")]
    assert metrics[0] == metrics[1]
    small(tmp_path, seed=1).federated_data().write_indices(path)
    with refused(Conflict, "data"):
        small(tmp_path / "again", data=data, rounds=3).resume(tmp_path / "again").run()


def test_indices_stay_in_the_order_of_the_file(tmp_path):
    path = tmp_path / "division.json"
    path.write_text('{"clients": [{"train": [7, 3], "test": [95, 91]}, {"train": [4]}]}')
    one, two = tiny(FromFile(path=str(path))).federate(2, 0).clients
    assert (one.train.tolist(), one.val.tolist(), one.test.tolist()) == ([7, 3], [], [95, 91])
    assert (two.train.tolist(), len(two.test)) == ([4], 0)


def test_other_data_and_other_numbers_of_clients_are_refused(tmp_path):
    path = tmp_path / "division.json"
    tiny(seed=0).federate(3, 0).write_indices(path)
    for clients, seed in ((3, 1), (4, 0)):
        with refused(Conflict, path):
            tiny(FromFile(path=str(path)), seed=seed).federate(clients, 0)
    content = json.loads(path.read_text())
    del content["dataset"]
    path.write_text(json.dumps(content))
    tiny(FromFile(path=str(path)), seed=1).federate(3, 0)


OPTIONS = ["--data", "Synthetic", "--data.train", "90", "--data.test", "30", "--data.shape", "[1,2,2]"]


def test_the_command_writes_a_division(tmp_path, capsys):
    path = tmp_path / "division.json"
    assert main(["divide", str(path), *OPTIONS, "--clients", "3", "--seed", "4"]) == 0
    said = capsys.readouterr().out
    assert "30 training samples" in " ".join(said.split())
    assert said.endswith(f"Written: {path}\n")
    read = tiny(FromFile(path=str(path))).federate(3, 0)
    assert read.digest() == tiny().federate(3, 4).digest()
    assert main(["divide", str(tmp_path / "none.json"), *OPTIONS, "--clients", "0"]) == 2
    assert "clients is 0: it must be at least 1" in capsys.readouterr().err
    before = path.read_bytes()
    assert main(["divide", str(path), *OPTIONS]) == 2
    assert f"{path} already exists" in capsys.readouterr().err
    assert path.read_bytes() == before


@pytest.mark.parametrize("output", ["", ".", "/"])
def test_a_division_needs_the_name_of_a_file(capsys, output):
    assert main(["divide", output, *OPTIONS]) == 2
    assert "cannot be written: Is a directory" in capsys.readouterr().err


# --- FLGo
# ------------------------------------------------------------------------------------------------------


def flgo(trains, former=False, vals=None):
    """What FLGo's pipe saves for a data set of torchvision; formerly, with a validation part."""
    names = [f"Client{i}" for i in range(len(trains))]
    content = {"client_names": names, "rawdata_path": "/x", "additional_option": {}, "server_data": [0, 1]}
    for i, name in enumerate(names):
        content[name] = {"dtrain": trains[i], "dvalid": vals[i]} if former else {"data": trains[i]}
    return content


@pytest.mark.parametrize("former", [False, True])
def test_flgo(tmp_path, former):
    """Its indices count training samples; its server's test samples are dealt, alike in each class."""
    test, clients = [15, 4, 3, 2], 3
    dataset = make_dataset([30, 12, 0, 7], test)
    order = np.random.default_rng(0).permutation(49)
    held = order[: len(order) // 4 if former else 0]
    trains = [order[len(held) + i :: clients].tolist() for i in range(clients)]
    vals = [held[i::clients].tolist() for i in range(clients)]
    path = tmp_path / "data.json"
    path.write_text(json.dumps(flgo(trains, former, vals)))
    published = np.flatnonzero(dataset.origin == ORIGIN["train"])
    found = FromFile(path=str(path)).assign(dataset, clients, np.random.default_rng(0))
    for mine, indices, val in zip(found, trains, vals):
        assert mine.train.tolist() == published[indices].tolist()
        assert mine.val.tolist() == published[val].tolist()
        assert (dataset.origin[mine.test] == ORIGIN["test"]).all()
    counts, tests = (matrix(dataset, found, part) for part in ("train", "test"))
    trained = counts.sum(axis=0) > 0
    assert (tests.sum(axis=0) == np.where(trained, test, 0)).all()
    shares = counts / np.maximum(counts.sum(axis=0), 1)
    assert (np.abs(tests - shares * test) <= 1)[:, trained].all()
