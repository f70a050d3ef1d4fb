"""Images in a cache file reach the actors as a file name on one host, and as bytes on several."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfl.data import TEST, TRAIN, ClientData, Dataset, FederatedData
from rayfl.data.readers.cache import Decoded, MappedImages, use_cache

ray: Any = pytest.importorskip("ray")

from rayfl.engine import cluster as clusters  # noqa: E402

pytestmark = pytest.mark.usefixtures("ray_runtime")


@pytest.mark.parametrize("hosts", [1, 2])
def test_how_images_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 3, 8, 8), dtype=np.uint8)
    mapped, _ = use_cache("x", 1, lambda: Decoded((40, 3, 8, 8), [images], {}), str(tmp_path))
    dataset = Dataset(
        mapped,
        np.zeros(40, np.int64),
        np.zeros(40, np.int64),
        np.repeat(np.array([TRAIN, TEST], np.uint8), 20),
        ("a",),
        ("one",),
        (0.0,) * 3,
        (1.0,) * 3,
    )
    data = FederatedData(dataset, (ClientData(np.arange(20), np.arange(0), np.arange(20, 40), 0),))
    cluster = clusters.Cluster(None)
    cluster.wait_until_up()
    monkeypatch.setattr(clusters.ray, "nodes", lambda: [{"Alive": True}] * hosts + [{"Alive": False}])
    found = cluster.put_data(data).dataset.inputs
    assert isinstance(found, MappedImages) == (hosts == 1)
    assert np.array_equal(found, images)
    assert not found.flags.writeable  # in the file or in the object store, not a copy
    if hosts == 2:
        next(tmp_path.iterdir()).unlink()
    total = ray.remote(lambda d: (int(d.dataset.inputs.sum()), type(d.dataset.inputs).__name__))
    kind = "MappedImages" if hosts == 1 else "ndarray"
    assert ray.get(total.remote(cluster.shared)) == (int(images.sum()), kind)
    monkeypatch.setattr(clusters.ray, "nodes", lambda: [{"Alive": True}] * 2)
    cluster.share_with_new_hosts(data)  # another host has joined, where it was one
    assert ray.get(total.remote(cluster.shared)) == (int(images.sum()), "ndarray")
    cluster.close()
