"""What the data sets of handwritten and printed digits share."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rayfl.data.dataset import Dataset


class Part(NamedTuple):
    """Images of one domain and one part of the published division.

    Attributes:
        images: uint8 [n, ...].
        labels: [n], whole numbers from 0 to 9.
        domain: number of the domain.
        origin: TRAIN, VAL, TEST or UNUSED.
    """

    images: np.ndarray
    labels: np.ndarray
    domain: int
    origin: int


def join_labels(parts: Sequence[Part]) -> dict[str, np.ndarray]:
    """Return ``labels``, ``domains`` and ``origin`` of all parts, one after the other, as in `Dataset`."""
    sizes = [len(part.labels) for part in parts]
    return {
        "labels": np.concatenate([part.labels for part in parts]).astype(np.int64),
        "domains": np.repeat(np.array([part.domain for part in parts], np.int64), sizes),
        "origin": np.repeat(np.array([part.origin for part in parts], np.uint8), sizes),
    }


def digit_dataset(
    images: np.ndarray, arrays: Mapping[str, np.ndarray], domain_names: tuple[str, ...]
) -> Dataset:
    """Return images, uint8 [N, 3, H, W], with what ``join_labels`` returns, normalised to -1 to 1."""
    return Dataset(
        inputs=images,
        labels=arrays["labels"],
        domains=arrays["domains"],
        origin=arrays["origin"],
        class_names=tuple("0123456789"),
        domain_names=domain_names,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
    )
