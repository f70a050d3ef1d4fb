"""The five domains of digits as files in their original formats, with few made-up images."""

import bz2

import numpy as np
from scipy.io import savemat

from rayfl.data.sets import digits_five as module
from tests.support.image_files import idx

DOMAINS = ("MNIST", "SVHN", "USPS", "SynthDigits", "MNIST-M")

N = 950  # images of a domain, of which 760 are for training

HELD = 150  # of them in the originals' test files


def numbered(n, size, channels, seed):
    """Images whose upper left corner tells them apart, of one colour otherwise, and labels."""
    rng = np.random.default_rng(seed)
    images = np.zeros((n, size, size, channels), np.uint8)
    images[:] = rng.integers(0, 256, (n, 1, 1, channels), dtype=np.uint8)
    labels = rng.permutation(np.arange(n) % 10)
    return (images[..., 0] if channels == 1 else images), labels


def parts(n=N, size=28, channels=1, seed=0):
    images, labels = numbered(n, size, channels, seed)
    cut = n - HELD
    return (images[:cut], labels[:cut]), (images[cut:], labels[cut:])


def write_mnist(root):
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    found = parts(seed=1)
    for name, (images, labels) in zip(("train", "t10k"), found):
        (folder / f"{name}-images-idx3-ubyte").write_bytes(idx(images))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx(labels.astype(np.uint8)))
    return found


def write_mat(folder, names, found, ten=False):
    folder.mkdir(parents=True, exist_ok=True)
    for name, (images, labels) in zip(names, found):
        shown = np.where(labels == 0, 10, labels) if ten else labels
        savemat(folder / name, {"X": images.transpose(1, 2, 3, 0), "y": shown[:, None].astype(np.uint8)})
    return found


def write_svhn(root):
    return write_mat(root / "SVHN", module._SVHN, parts(size=32, channels=3, seed=2), ten=True)


def write_synth(root):
    return write_mat(root / "SynthDigits", module._SYNTH, parts(size=32, channels=3, seed=4))


def write_usps(root):

    found = parts(size=16, seed=3)
    for name, (images, labels) in zip(("usps.bz2", "usps.t.bz2"), found):
        lines = []
        for image, label in zip(images, labels):
            value = f"{image[0, 0] / 255 * 2 - 1 + 1e-4:.4f}" if image[0, 0] < 255 else "1"
            lines.append(f"{label + 1} " + " ".join(f"{k}:{value}" for k in range(1, 257)))
        (root / name).write_bytes(bz2.compress("\n".join(lines).encode()))
    return found


def write_mnist_m(root):
    folder = root / "mnist_m"
    folder.mkdir(parents=True)
    found = parts(size=32, channels=3, seed=5)
    for name, (images, labels) in zip(module._NPZ, found):
        np.savez(folder / name, x=images, y=labels)
    return found


WRITE = dict(zip(DOMAINS, (write_mnist, write_svhn, write_usps, write_synth, write_mnist_m)))
