"""Counts of the published data sets, where RAYFL_DATA names a folder that holds them."""

import os
from pathlib import Path

import numpy as np
import pytest

from rayfl.data import (
    CIFAR10,
    CIFAR100,
    MNIST,
    PACS,
    TEST,
    TRAIN,
    USPS,
    VAL,
    DigitsFive,
    Dirichlet,
    OfficeCaltech10,
    Pachinko,
    Pathological,
    Superclass,
)

ROOT = os.environ.get("RAYFL_DATA")


def root_with(name):
    if ROOT is None:
        pytest.skip("the environment variable RAYFL_DATA names no folder with data sets")
    if not (Path(ROOT) / name).exists():
        pytest.skip(f"{name} is not in RAYFL_DATA")
    return ROOT


def counts(dataset, origin):
    return np.bincount(dataset.labels[dataset.indices(origin)], minlength=dataset.classes).tolist()


def test_cifar10():
    dataset = CIFAR10(root=root_with("cifar-10-batches-py"), verify=False).load()
    assert counts(dataset, TRAIN) == [5000] * 10
    assert counts(dataset, TEST) == [1000] * 10
    assert dataset.class_names[:3] == ("airplane", "automobile", "bird")
    pixels = dataset.inputs[dataset.indices(TRAIN)][::10].astype(np.float64) / 255
    np.testing.assert_allclose(pixels.mean(axis=(0, 2, 3)), dataset.mean, atol=0.01)


@pytest.mark.parametrize(("labels", "classes"), [("fine", 100), ("coarse", 20)])
def test_cifar100(labels, classes):
    """Complete or a subset: the same number of every class."""
    dataset = CIFAR100(root=root_with("cifar-100-python"), verify=False, labels=labels).load()
    assert dataset.classes == classes
    for origin in (TRAIN, TEST):
        assert len(set(counts(dataset, origin))) == 1
    per_class = counts(dataset, TRAIN)[0] * classes // 100, counts(dataset, TEST)[0] * classes // 100
    assert per_class in ((500, 100), (200, 50))


def test_every_superclass_of_cifar100_has_five_classes():
    dataset = CIFAR100(root=root_with("cifar-100-python"), verify=False).load()
    pairs = {(int(s), int(c)) for s, c in zip(dataset.superclasses, dataset.labels)}
    assert len(pairs) == 100
    assert np.bincount([s for s, _ in pairs]).tolist() == [5] * 20
    members = {s: sorted(dataset.class_names[c] for t, c in pairs if t == s) for s in (0, 19)}
    assert members[0] == ["beaver", "dolphin", "otter", "seal", "whale"]  # aquatic mammals
    assert members[19] == ["lawn_mower", "rocket", "streetcar", "tank", "tractor"]  # vehicles 2


@pytest.mark.parametrize("clients", [5, 15, 20])
def test_superclass_task_of_cifar100(clients):
    data = CIFAR100(
        root=root_with("cifar-100-python"), partition=Superclass(), verify=False, labels="coarse"
    ).federate(clients, 0)
    held = data.subclass_matrix() > 0
    assert (held.sum(axis=1) == 20).all()
    assert (held.sum(axis=0) == clients // 5).all()
    per_class = len(data.dataset.indices(TRAIN)) // 100
    sizes = data.counts("train")
    assert sizes.sum() == per_class * 100
    assert sizes.max() - sizes.min() <= 1
    if (clients, per_class) == (15, 500):
        assert set(sizes) == {3333, 3334}


def test_pachinko_on_cifar100():
    data = CIFAR100(root=root_with("cifar-100-python"), partition=Pachinko(), verify=False).federate(100, 0)
    total = data.counts("train") + data.counts("test")
    assert (total == len(data.dataset) // 100).all()
    assert data.counts("test").min() > 0
    coarse = np.array([np.bincount(data.dataset.superclasses[s.train], minlength=20) for s in data.clients])
    largest = coarse.max(axis=1) / coarse.sum(axis=1)
    assert 0.3 < np.median(largest) < 0.6  # of Dir(0.3) over 20
    assert data.skew()["label_distance"] > 0.5


def test_partitions_of_cifar10():
    root = root_with("cifar-10-batches-py")
    data = CIFAR10(
        root=root, partition=Pathological(classes_per_client=2, split="pooled"), verify=False
    ).federate(100, 0)
    assert (data.label_matrix("train") > 0).sum(axis=1).tolist() == [2] * 100
    assert (data.label_matrix("val") == data.label_matrix("test")).all()
    shares = data.counts("test") / (data.counts("train") + data.counts("val") + data.counts("test"))
    np.testing.assert_allclose(shares, 0.1, atol=0.003)
    clients_data = Dirichlet(alpha=0.3).assign(data.dataset, 300, np.random.default_rng(0))
    assert min(len(s.train) for s in clients_data) >= 10
    assert min(len(s.test) for s in clients_data) >= 1


def test_mnist():
    dataset = MNIST(root=root_with("MNIST/raw")).load()
    assert counts(dataset, TRAIN) == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert counts(dataset, TEST) == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_usps():
    dataset = USPS(root=root_with("usps.bz2"), verify=False).load()
    assert counts(dataset, TRAIN) == [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]
    assert counts(dataset, TEST) == [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A folder for decoded images: small ones, each data set once for all tests."""
    return str(tmp_path_factory.mktemp("cache"))


def by_domain(dataset):
    return {
        name: tuple(int(((dataset.domains == d) & (dataset.origin == o)).sum()) for o in (TRAIN, VAL, TEST))
        for d, name in enumerate(dataset.domain_names)
    }


def test_digits_five(cache):
    """Of MNIST-M there may be a part only; the number of its training images is the same."""
    root = root_with("mnist_m")
    options = {"domains": ["MNIST", "USPS", "MNIST-M"], "verify": False, "cache": cache}
    found = by_domain(DigitsFive(root=root, **options).load())
    assert found["MNIST"] == (743, 0, 14000)
    assert found["USPS"] == (743, 0, 1860)
    assert found["MNIST-M"][0] == 743
    assert found["MNIST-M"][2] in (14000, 1500, 13601)  # all, of 7,500, of the two parts of the original
    found = by_domain(DigitsFive(root=root, **options, quantity=2).load())
    assert [n for n, _, _ in found.values()] == [1487] * 3


def test_office_caltech_10(cache):
    root = root_with("office_caltech_10")
    options = {"image_size": 16, "cache": cache}
    few = OfficeCaltech10(root=root, **options).load()
    assert by_domain(few) == {
        "amazon": (62, 50, 192),
        "caltech": (62, 50, 225),
        "dslr": (62, 50, 32),
        "webcam": (62, 50, 59),
    }
    full = OfficeCaltech10(root=root, **options, scale="full").load()
    assert [n for n, _, _ in by_domain(full).values()] == [766, 898, 125, 236]
    fdse = OfficeCaltech10(root=root, **options, split="fdse").load()
    assert by_domain(fdse) == {
        "caltech": (899, 112, 112),
        "amazon": (767, 96, 95),
        "dslr": (126, 16, 15),
        "webcam": (236, 30, 29),
    }
    matrix = [np.bincount(fdse.labels[fdse.domains == d], minlength=10).tolist() for d in range(4)]
    assert matrix == [
        [151, 110, 100, 138, 85, 128, 133, 94, 87, 97],
        [92, 82, 94, 99, 100, 100, 99, 100, 94, 98],
        [12, 21, 12, 13, 10, 24, 22, 12, 8, 23],
        [29, 21, 31, 27, 27, 30, 43, 30, 27, 30],
    ]


def test_pacs(cache):
    dataset = PACS(root=root_with("PACS"), image_size=8, cache=cache).load()
    assert {name: sum(n) for name, n in by_domain(dataset).items()} == {
        "art_painting": 2048,
        "cartoon": 2344,
        "photo": 1670,
        "sketch": 3929,
    }
    assert by_domain(dataset)["photo"] == (1336, 167, 167)
