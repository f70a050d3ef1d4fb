"""Images whose noise rises from client to client."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from rayfl.data import CIFAR10, ClientData, FederatedData
from rayfl.data.sets.cifar import noise_levels, with_noise
from rayfl.errors import Conflict, Shortage
from tests.support.datasets import make_dataset
from tests.support.image_files import write_cifar10
from tests.support.refusals import refused


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cifar")
    write_cifar10(folder, per_file=40)
    return str(folder)


def federated(root, clients=4, seed=0, **options):
    return CIFAR10(root=root, verify=False, **options).federate(clients, seed)


def values(data, indices):
    """Images in units of 0 to 255."""
    x = data.dataset.inputs[indices]
    if x.dtype == np.uint8:
        return x.astype(np.float64)
    mean, std = (np.array(v)[:, None, None] for v in (data.dataset.mean, data.dataset.std))
    return (x.astype(np.float64) * std + mean) * 255


def test_noise_of_each_client(root):
    clean, noisy = federated(root), federated(root, noise=20.0)
    assert noisy.dataset.inputs.dtype == np.float32
    assert [c["sha256"] for c in noisy.describe()["clients"]] == [
        c["sha256"] for c in clean.describe()["clients"]
    ]
    for client_data, level in zip(clean.clients, noise_levels(20.0, 4)):
        for part in ("train", "test"):
            before, after = values(clean, client_data.split(part)), values(noisy, client_data.split(part))
            middle = (before > 100) & (before < 155)  # of the others some are clipped
            assert (after[middle] - before[middle]).std() == pytest.approx(level, rel=0.05, abs=1e-4)
            assert (after[middle] - before[middle]).mean() == pytest.approx(0, abs=1)
            assert after.min() >= -1e-3
            assert after.max() <= 255 + 1e-3
    last = values(noisy, noisy.clients[3].train)
    assert (np.abs(last - np.round(last)) > 0.01).mean() > 0.5  # clipped, but not rounded
    assert ((last < 1e-3) | (last > 255 - 1e-3)).mean() > 0.01


def test_every_client_has_noise_of_its_own():
    """Of grey images, none of which is clipped; equal draws would be equal multiples of the levels."""
    dataset = replace(make_dataset([40], [0]), inputs=np.full((40, 1, 2, 2), 128, np.uint8), std=(0.25,))
    nothing = np.zeros(0, np.int64)
    clients_data = tuple(ClientData(part, nothing, nothing) for part in np.split(np.arange(40), 4))
    noisy = with_noise(FederatedData(dataset, clients_data), 9.0, 0)
    draws = [(values(noisy, s.train) - 128) / level for s, level in zip(clients_data[1:], (3, 6, 9))]
    for one, other in combinations(draws, 2):
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.7
    assert all(abs(draw.std() - 1) < 0.3 for draw in draws)


def test_noise_is_decided_by_the_seed_alone(root):
    """Noise is decided by the seed and not by the validation split."""

    def images(run, **options):
        return CIFAR10(root=root, verify=False, noise=10.0, **options).federate(4, run).dataset.inputs

    assert np.array_equal(images(1), images(1))
    assert not np.array_equal(images(1), images(2))
    assert np.array_equal(images(1, seed=5), images(2, seed=5))
    assert np.array_equal(images(1), images(1, val_fraction=0.2))


def test_the_first_client_and_unused_images_have_none(root):
    clean = federated(root, clients=2)
    first, second = clean.clients
    dropped = FederatedData(clean.dataset, (first, ClientData(second.train, second.val, second.test[:0])))
    noisy = with_noise(dropped, 0.1, 3)
    for indices in (first.train, first.test, second.test):
        np.testing.assert_allclose(values(noisy, indices), values(clean, indices), atol=1e-3)
    assert not np.allclose(values(noisy, second.train), values(clean, second.train), atol=1e-2)


def test_noise_is_recorded_and_refused(root, monkeypatch):
    recorded = federated(root, noise=15.0).describe()["settings"]
    assert recorded["data"]["noise"] == 15.0
    assert recorded["noise_levels"] == pytest.approx([0, 5, 10, 15])
    without = federated(root, noise=0)
    assert "noise_levels" not in without.describe()["settings"]
    assert without.dataset.inputs.dtype == np.uint8
    with refused(Conflict, "data.noise"):
        noise_levels(5.0, 1)
    held = ClientData(np.array([0]), np.array([], int), np.array([], int))
    with refused(Conflict, "data.noise"):  # images of two clients
        with_noise(FederatedData(make_dataset([3], [0]), (held, held)), 10.0, 0)
    monkeypatch.setattr("rayfl.system.memory.available_memory", lambda: 4 * 240 * 3072 - 1.0)
    with refused(Shortage):  # images of 224 pixels would need 36 GB
        federated(root, noise=20.0)
