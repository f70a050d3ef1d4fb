"""Files of CIFAR and MNIST in their published formats, with few made-up images."""

import gzip
import pickle
import struct

import numpy as np

RNG = np.random.default_rng(0)


def write_cifar10(root, per_file=4):
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    names = [f"class{c}" for c in range(10)]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}, protocol=2))
    rows = {}
    for i, file in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        data = RNG.integers(0, 256, (per_file, 3072), dtype=np.uint8)
        labels = [(i + k) % 10 for k in range(per_file)]
        rows[file] = data, labels
        (folder / file).write_bytes(
            pickle.dumps({"data": data, "labels": labels, "batch_label": b"x"}, protocol=2)
        )
    return folder, rows


def write_cifar100(root, fine=(3, 99, 42)):
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    meta = {
        "fine_label_names": [f"f{c}" for c in range(100)],
        "coarse_label_names": [f"c{c}" for c in range(20)],
    }
    (folder / "meta").write_bytes(pickle.dumps(meta, protocol=2))
    for file in ("train", "test"):
        batch = {
            "data": np.zeros((len(fine), 3072), np.uint8),
            "fine_labels": [*fine],
            "coarse_labels": [f // 5 for f in fine],
        }
        (folder / file).write_bytes(pickle.dumps(batch, protocol=2))
    return folder


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(root, packed=False, of="MNIST", sizes=(6, 3)):
    folder = root / of / "raw"
    folder.mkdir(parents=True)
    arrays = {}
    for part, n in zip(("train", "t10k"), sizes, strict=True):
        labels = np.arange(n, dtype=np.uint8) % 10
        arrays[part] = RNG.integers(0, 256, (n, 28, 28), dtype=np.uint8), labels
        for kind, array in zip(("images-idx3", "labels-idx1"), arrays[part]):
            content = idx(array)
            name = f"{part}-{kind}-ubyte"
            (folder / (name + ".gz" * packed)).write_bytes(gzip.compress(content) if packed else content)
    return folder, arrays
