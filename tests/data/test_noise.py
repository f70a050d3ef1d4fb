"""Images whose noise rises from client to client."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayfl.data import CIFAR10, CIFAR100, ClientData, Dataset, FederatedData
from rayfl.data.sets.cifar import noise_levels, with_noise
from rayfl.errors import BadValue, Conflict, Shortage
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


def test_levels_rise_evenly_from_none():
    np.testing.assert_allclose(noise_levels(20, 5), [0, 5, 10, 15, 20])


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
    n, shape = 40, (1, 2, 2)
    dataset = Dataset(
        inputs=np.full((n, *shape), 128, np.uint8),
        labels=np.zeros(n, np.int64),
        domains=np.zeros(n, np.int64),
        origin=np.zeros(n, np.uint8),
        class_names=("grey",),
        domain_names=("one",),
        mean=(0.5,),
        std=(0.25,),
    )
    nothing = np.zeros(0, np.int64)
    clients_data = tuple(ClientData(part, nothing, nothing) for part in np.split(np.arange(n), 4))
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


def test_noise_is_recorded(root):
    recorded = federated(root, noise=15.0).describe()["settings"]
    assert recorded["data"]["noise"] == 15.0
    assert recorded["noise_levels"] == pytest.approx([0, 5, 10, 15])
    assert "noise_levels" not in federated(root).describe()["settings"]


def test_without_noise_images_stay_bytes(root):
    assert federated(root, noise=0).dataset.inputs.dtype == np.uint8


@settings(deadline=None, max_examples=10)
@given(strongest=st.floats(0.1, 50), seed=st.integers(0, 99))
def test_the_first_client_and_unused_images_have_none(root, strongest, seed):
    clean = federated(root, clients=2)
    first, second = clean.clients
    dropped = type(clean)(clean.dataset, (first, type(second)(second.train, second.val, second.test[:0])))
    noisy = with_noise(dropped, strongest, seed)
    for indices in (first.train, first.test, second.test):
        np.testing.assert_allclose(values(noisy, indices), values(clean, indices), atol=1e-3)
    assert not np.allclose(values(noisy, second.train), values(clean, second.train), atol=1e-2)


@pytest.mark.parametrize("kind", [CIFAR10, CIFAR100])
@pytest.mark.parametrize("noise", [-1.0, float("nan"), float("inf")])
def test_impossible_noise_is_refused(kind, noise):
    with refused(BadValue, "data.noise"):
        kind(noise=noise)


def test_memory_for_noise_is_looked_at_first(root, monkeypatch):
    """Images of 224 pixels would need 36 GB."""
    monkeypatch.setattr("rayfl.system.memory.available_memory", lambda: 4 * 240 * 3072 - 1.0)
    with refused(Shortage):
        federated(root, noise=20.0)


def test_one_client_has_no_range_of_noise():
    with refused(Conflict, "data.noise"):
        noise_levels(5.0, 1)
