import tracemalloc

import numpy as np
import pytest

import rayfl.data.sets.synthetic as synthetic
from rayfl.data import TEST, TRAIN, DomainPerClient, Synthetic
from rayfl.errors import Shortage
from rayfl.system import memory
from tests.support.refusals import refused


def test_the_seed_decides_every_byte():
    def images(**options):
        return Synthetic(train=300, test=20, shape=(3, 5, 7), domains=2, **options).load().inputs

    assert np.array_equal(images(seed=3), images(seed=3))
    assert np.array_equal(images(), images(seed=0))
    assert not np.array_equal(images(seed=3), images(seed=4))


def test_chunks_do_not_matter(monkeypatch):
    whole = Synthetic(train=300, test=20, shape=(1, 4, 4)).load()
    monkeypatch.setattr(synthetic, "_CHUNK", 7)
    assert np.array_equal(whole.inputs, Synthetic(train=300, test=20, shape=(1, 4, 4)).load().inputs)


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_classes_can_be_told_apart(dtype):
    dataset = Synthetic(train=400, test=200, shape=(3, 8, 8), dtype=dtype).load()
    assert dataset.inputs.dtype == dtype
    flat = dataset.inputs.reshape(len(dataset), -1).astype(np.float64)
    train, test = dataset.indices(TRAIN), dataset.indices(TEST)
    means = np.stack([flat[train][dataset.labels[train] == c].mean(axis=0) for c in range(10)])
    nearest = ((flat[test][:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == dataset.labels[test]).mean() > 0.95


def test_noise_hides_the_classes():
    quiet, loud = (Synthetic(train=100, test=10, shape=(1, 4, 4), noise=noise).load() for noise in (0.0, 5.0))
    first = quiet.inputs[quiet.labels == 0]
    assert (first == first[0]).all()
    assert loud.inputs.std() > 3 * quiet.inputs.std()


def test_domains_differ_and_are_balanced():
    data = Synthetic(train=600, test=120, classes=3, shape=(3, 8, 8), domains=4, partition=DomainPerClient())
    federated = data.federate(4, 0)
    assert (federated.label_matrix() == 50).all()
    dataset = federated.dataset
    brightness = np.array([dataset.inputs[s.train].mean(axis=(0, 2, 3)) for s in federated.clients])
    distances = np.abs(brightness[:, None] - brightness).max(axis=2)
    assert distances[~np.eye(4, dtype=bool)].min() > 0.1


def test_little_memory_beside_the_result():
    tracemalloc.start()
    images = Synthetic(train=6000, test=10).load().inputs
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.3 * images.nbytes


def test_what_does_not_fit_into_memory_is_refused_at_once(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 1e9)
    for options in ({"train": 10**11}, {"classes": 10**8}, {"shape": (3, 10**6, 10**6)}):
        with refused(Shortage):
            Synthetic(**options).load()
    Synthetic(train=20, test=10).load()
