"""A part of CIFAR: a data set in the same layout, of the first images of each class."""

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rayfl.data import CIFAR10, CIFAR100
from tests.support.examples import example
from tests.support.image_files import write_cifar10, write_cifar100

script = example("part_of_cifar.py")


@pytest.mark.parametrize(
    ("write", "data"),
    [(partial(write_cifar10, per_file=25), CIFAR10), (write_cifar100, CIFAR100)],
    ids=["CIFAR10", "CIFAR100"],
)
def test_the_first_images_of_each_class_of_each_file(tmp_path, monkeypatch, write, data):
    _, *files = data.files()
    folder = (tmp_path / "all" / files[0]).parent
    write(tmp_path / "all")
    monkeypatch.setattr(
        sys, "argv", ["part", str(folder), str(tmp_path / "part"), "--train", "1", "--test", "2"]
    )
    script.main()
    whole, part = (data(root=str(tmp_path / name), verify=False).load() for name in ("all", "part"))
    sizes = [len(script.unpickle(tmp_path / "all" / file)["data"]) for file in files]
    kept, start = [], 0
    for size, file in zip(sizes, files, strict=True):
        labels = whole.labels[start : start + size]
        most = 2 if Path(file).name.startswith("test") else 1
        kept += [start + i for i in range(size) if (labels[:i] == labels[i]).sum() < most]
        start += size
    assert len(kept) == {CIFAR10: 5 * 10 + 20, CIFAR100: 3 + 3}[data]
    for field in ("inputs", "labels", "origin"):
        assert np.array_equal(getattr(part, field), getattr(whole, field)[kept])


def test_bad_folders(tmp_path, monkeypatch, capsys):
    for arguments, says in [
        ([tmp_path, tmp_path / "part"], "none of the files batches.meta, meta"),
        ([write_cifar10(tmp_path)[0], tmp_path], "already exists"),
    ]:
        monkeypatch.setattr(sys, "argv", ["part", *map(str, arguments), "--train", "1", "--test", "1"])
        with pytest.raises(SystemExit):
            script.main()
        assert says in capsys.readouterr().err
