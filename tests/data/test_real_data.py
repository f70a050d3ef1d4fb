"""Counts of the published data sets, where RAYFL_DATA names a folder that holds them."""

import os
from pathlib import Path

import numpy as np
import pytest

from rayfl.data import CIFAR10, CIFAR100, MNIST, TEST, TRAIN, USPS

ROOT = os.environ.get("RAYFL_DATA")


def root_with(name):
    if ROOT is None:
        pytest.skip("the environment variable RAYFL_DATA names no folder with data sets")
    if not (Path(ROOT) / name).exists():
        pytest.skip(f"{name} is not in RAYFL_DATA")
    return ROOT


def counts(pool, origin):
    return np.bincount(pool.labels[pool.indices(origin)], minlength=pool.classes).tolist()


def test_cifar10():
    pool = CIFAR10(root_with("cifar-10-batches-py"), verify=False).load()
    assert counts(pool, TRAIN) == [5000] * 10
    assert counts(pool, TEST) == [1000] * 10
    assert pool.class_names[:3] == ("airplane", "automobile", "bird")
    pixels = pool.images[pool.indices(TRAIN)][::10].astype(np.float64) / 255
    np.testing.assert_allclose(pixels.mean(axis=(0, 2, 3)), pool.mean, atol=0.01)


@pytest.mark.parametrize(("labels", "classes"), [("fine", 100), ("coarse", 20)])
def test_cifar100(labels, classes):
    """Complete or a subset: the same number of every class."""
    pool = CIFAR100(root_with("cifar-100-python"), verify=False, labels=labels).load()
    assert pool.classes == classes
    for origin in (TRAIN, TEST):
        assert len(set(counts(pool, origin))) == 1
    per_class = counts(pool, TRAIN)[0] * classes // 100, counts(pool, TEST)[0] * classes // 100
    assert per_class in ((500, 100), (200, 50))


def test_mnist():
    pool = MNIST(root_with("MNIST/raw")).load()
    assert counts(pool, TRAIN) == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert counts(pool, TEST) == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_usps():
    pool = USPS(root_with("usps.bz2"), verify=False).load()
    assert counts(pool, TRAIN) == [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]
    assert counts(pool, TEST) == [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]
