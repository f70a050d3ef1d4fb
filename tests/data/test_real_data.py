"""Counts of the published data sets, where RAYFL_DATA names a folder that holds them."""

import os
from pathlib import Path

import numpy as np
import pytest

from rayfl.data import CIFAR10, CIFAR100, MNIST, PACS, TEST, TRAIN, USPS, VAL, OfficeCaltech10

ROOT = os.environ.get("RAYFL_DATA")


def root_with(name):
    if ROOT is None:
        pytest.skip("the environment variable RAYFL_DATA names no folder with data sets")
    if not (Path(ROOT) / name).exists():
        pytest.skip(f"{name} is not in RAYFL_DATA")
    return ROOT


def counts(dataset, origin):
    return np.bincount(dataset.labels[dataset.indices(origin)], minlength=dataset.classes).tolist()


MNIST_TRAIN = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
MNIST_TEST = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
USPS_TRAIN = [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]
USPS_TEST = [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]


@pytest.mark.parametrize(
    ("kind", "place", "train", "test"),
    [
        (CIFAR10, "cifar-10-batches-py", [5000] * 10, [1000] * 10),
        (MNIST, "MNIST/raw", MNIST_TRAIN, MNIST_TEST),
        (USPS, "usps.bz2", USPS_TRAIN, USPS_TEST),
    ],
)
def test_images_of_each_class(kind, place, train, test):
    dataset = kind(root=root_with(place), verify=kind is MNIST).load()
    assert (counts(dataset, TRAIN), counts(dataset, TEST)) == (train, test)
    if kind is CIFAR10:
        assert dataset.class_names[:3] == ("airplane", "automobile", "bird")
        pixels = dataset.inputs[dataset.indices(TRAIN)][::10].astype(np.float64) / 255
        np.testing.assert_allclose(pixels.mean(axis=(0, 2, 3)), dataset.mean, atol=0.01)


def test_every_superclass_of_cifar100_has_five_classes_of_one_size():
    """Complete or a subset: the same number of every class."""
    dataset = CIFAR100(root=root_with("cifar-100-python"), verify=False).load()
    assert [{*counts(dataset, origin)} for origin in (TRAIN, TEST)] in ([{500}, {100}], [{200}, {50}])
    pairs = {(int(s), int(c)) for s, c in zip(dataset.superclasses, dataset.labels)}
    assert np.bincount([s for s, _ in pairs]).tolist() == [5] * 20
    members = {s: sorted(dataset.class_names[c] for t, c in pairs if t == s) for s in (0, 19)}
    assert members[0] == ["beaver", "dolphin", "otter", "seal", "whale"]  # aquatic mammals
    assert members[19] == ["lawn_mower", "rocket", "streetcar", "tank", "tractor"]  # vehicles 2


def by_domain(dataset):
    return {
        name: tuple(int(((dataset.domains == d) & (dataset.origin == o)).sum()) for o in (TRAIN, VAL, TEST))
        for d, name in enumerate(dataset.domain_names)
    }


OFFICE = {"caltech": (899, 112, 112), "amazon": (767, 96, 95), "dslr": (126, 16, 15), "webcam": (236, 30, 29)}


def test_office_caltech_10(tmp_path):
    options = {"root": root_with("office_caltech_10"), "image_size": 16, "cache": str(tmp_path)}
    few, full = (by_domain(OfficeCaltech10(**options, scale=scale).load()) for scale in ("fedbn", "full"))
    tests = {"amazon": 192, "caltech": 225, "dslr": 32, "webcam": 59}
    assert few == {name: (62, 50, n) for name, n in tests.items()}
    assert [n for n, _, _ in full.values()] == [766, 898, 125, 236]
    fdse = OfficeCaltech10(**options, split="fdse").load()
    assert by_domain(fdse) == OFFICE
    matrix = [np.bincount(fdse.labels[fdse.domains == d], minlength=10).tolist() for d in range(4)]
    assert matrix == [
        [151, 110, 100, 138, 85, 128, 133, 94, 87, 97],
        [92, 82, 94, 99, 100, 100, 99, 100, 94, 98],
        [12, 21, 12, 13, 10, 24, 22, 12, 8, 23],
        [29, 21, 31, 27, 27, 30, 43, 30, 27, 30],
    ]


def test_pacs(tmp_path):
    found = by_domain(PACS(root=root_with("PACS"), image_size=8, cache=str(tmp_path)).load())
    assert [sum(n) for n in found.values()] == [2048, 2344, 1670, 3929]
    assert found["photo"] == (1336, 167, 167)
