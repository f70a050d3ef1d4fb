"""Learnable data of any size, made from random numbers."""

import math
from typing import Annotated, Literal

import numpy as np
import torch

from rayfl.data.base import Data
from rayfl.data.dataset import TEST, TRAIN, Dataset
from rayfl.randomness import generator, numpy_generator
from rayfl.settings import at_least
from rayfl.system.memory import check_memory

_CHUNK = 256  # images that are made together, so that making them needs little memory beside the result


_Size = Annotated[int, at_least(1)]


class Synthetic(Data):
    """Made-up images for tests and benchmarks: a smooth prototype per class, plus noise.

    With several domains each has its own contrast and brightness per channel, so that there is feature skew.
    Every class and domain has the same number of samples, give or take one. Images depend on ``seed`` (0 if
    it is not given), not on the run's seed.
    """

    seed: int | None = None
    """Seed of the images, the partition and the validation split."""
    train: Annotated[int, at_least(1)] = 5000
    """Number of training samples."""
    test: Annotated[int, at_least(1)] = 1000
    """Number of test samples."""
    shape: tuple[_Size, _Size, _Size] = (3, 32, 32)
    """Channels, height and width of an image."""
    classes: Annotated[int, at_least(2)] = 10
    """Number of classes."""
    domains: Annotated[int, at_least(1)] = 1
    """Number of domains."""
    noise: Annotated[float, at_least(0)] = 1.0
    """Standard deviation of the noise; that of the prototypes is 1."""
    dtype: Literal["float32", "uint8"] = "float32"
    """``float32`` (used as it is) or ``uint8``."""

    def load(self) -> Dataset:
        """Make the images."""
        n = self.train + self.test
        values = math.prod(self.shape)
        check_memory(
            values * (n * np.dtype(self.dtype).itemsize + 12 * self.classes) + 40 * n,  # 12: of a prototype
            f"Synthetic: {n:,} images of {'x'.join(map(str, self.shape))} in {self.classes:,} classes",
            "use fewer images or classes, or smaller images",
        )
        rng = numpy_generator(self.seed or 0, "synthetic")
        channels, height, width = self.shape
        coarse = rng.standard_normal((self.classes, channels, 4, 4))
        prototypes = _interpolation(height) @ coarse @ _interpolation(width).T
        prototypes /= prototypes.std()
        prototypes = prototypes.astype(np.float32)
        scale = rng.uniform(0.5, 1.5, (self.domains, channels, 1, 1)).astype(np.float32)
        shift = rng.uniform(-1.0, 1.0, (self.domains, channels, 1, 1)).astype(np.float32)

        numbers = np.concatenate([np.arange(self.train), np.arange(self.test)])
        labels, domains = numbers % self.classes, numbers // self.classes % self.domains
        images = np.empty((n, *self.shape), dtype=self.dtype)
        quantised = self.dtype == "uint8"
        noise = generator(self.seed or 0, "synthetic noise")
        for start in range(0, n, _CHUNK):
            part = slice(start, min(start + _CHUNK, n))
            x = np.empty((part.stop - start, *self.shape), np.float32) if quantised else images[part]
            torch.from_numpy(x).normal_(0, self.noise, generator=noise)  # three times as fast as NumPy's
            x += prototypes[labels[part]]
            if self.domains > 1:
                x *= scale[domains[part]]
                x += shift[domains[part]]
            if quantised:
                images[part] = np.clip(x * 40 + 128, 0, 255)
        return Dataset(
            inputs=images,
            labels=labels,
            domains=domains,
            origin=np.repeat(np.array([TRAIN, TEST], np.uint8), [self.train, self.test]),
            class_names=tuple(str(c) for c in range(self.classes)),
            domain_names=tuple(f"domain{d}" for d in range(self.domains)),
            mean=(0.5 if quantised else 0.0,) * channels,
            std=(0.5 if quantised else 1.0,) * channels,
        )


def _interpolation(size: int) -> np.ndarray:
    """Return the matrix [size, 4] that interpolates linearly from 4 points to `size` points."""
    at = np.linspace(0, 3, size)
    return np.maximum(0, 1 - np.abs(at[:, None] - np.arange(4)))
