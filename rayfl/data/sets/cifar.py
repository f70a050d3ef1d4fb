"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) from the files for Python, in torchvision's layout."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np

from rayfl.data.dataset import TEST, TRAIN, Dataset
from rayfl.data.federated import FederatedData
from rayfl.data.readers.cache import Decoded, checksum, use_cache
from rayfl.data.readers.files import REPLACE, Published, Side, images_and_labels, unpickle
from rayfl.data.readers.images import scale_images
from rayfl.errors import Conflict
from rayfl.randomness import numpy_generator
from rayfl.settings import at_least
from rayfl.system.files import convert_content, explain_decode_errors
from rayfl.system.memory import check_memory

_SIDE = 32  # pixels
Normalisation = Literal["own", "half", "imagenet", "none"]
_Values = tuple[float, float, float]
_NORMALISATIONS: dict[str, tuple[_Values, _Values]] = {
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}
"""Mean and standard deviation per channel, beside each data set's own."""


class _Cifar(Published):
    """What both data sets share: pickled batches of rows of 3,072 bytes."""

    source = "https://www.cs.toronto.edu/~kriz/cifar.html"
    size = 60_000
    _mean: ClassVar[_Values]
    _std: ClassVar[_Values]

    noise: Annotated[float, at_least(0)] = 0.0
    """Standard deviation, in units of 0 to 255, of Gaussian noise in the images of the last client; the first
    has none, and from client to client it rises evenly.
    """
    augment: Literal["none", "fedgh", "reflect"] = "none"
    """``fedgh`` flips, erases parts of and shifts training images at random (Yi et al., MM 2023); ``reflect``
    flips and shifts them, with their reflection beyond the edges (Li et al., ICDE 2022).
    """
    normalise: Normalisation = "own"
    """Mean and standard deviation per channel that images are normalised by: the data set's
    ``own``; ``half``, .5 and .5; ``imagenet``, those of ImageNet; or ``none``: pixels from 0 to 1.
    """
    image_size: Side = _SIDE
    """Side to which images are scaled in pixels; 32 leaves them as they are."""

    @property
    def _label_keys(self) -> dict[str, tuple[str, str]]:
        """Field of Dataset -> what these labels are called in a batch, and their names in the meta file."""
        return {"labels": ("labels", "label_names")}

    def federate(self, clients: int | None, seed: int) -> FederatedData:
        """Load the data set, divide it, and add the noise (see :meth:`rayfl.data.Data.federate`)."""
        data = super().federate(clients, seed)
        return with_noise(data, self.noise, seed if self.seed is None else self.seed) if self.noise else data

    def load(self) -> Dataset:
        """Read the meta file, which comes first, and all batches."""
        root = self.folder()
        meta, *files = self.md5
        names = self._names(self.check(root, meta))
        batches = [self._batch(self.check(root, file), names) for file in files]
        fields = {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
        mean, std = self.mean_and_std
        return Dataset(
            inputs=self._resize_images(fields["images"]),
            labels=fields["labels"],
            superclasses=fields.get("superclasses"),
            subclasses=fields.get("subclasses"),
            domains=np.zeros(len(fields["images"]), np.int64),
            origin=np.repeat(
                np.array([TEST if Path(file).name.startswith("test") else TRAIN for file in files], np.uint8),
                [len(batch["images"]) for batch in batches],
            ),
            class_names=tuple(names["labels"]),
            domain_names=(type(self).__name__,),
            mean=mean,
            std=std,
            augment=self.augment,
        )

    @property
    def mean_and_std(self) -> tuple[_Values, _Values]:
        """Mean and standard deviation per channel that images are normalised by."""
        return _NORMALISATIONS.get(self.normalise, (self._mean, self._std))

    def _resize_images(self, images: np.ndarray) -> np.ndarray:
        """Return images, uint8 [N, 3, 32, 32], in the size asked for; another one is kept in a cache file."""
        side = self.image_size
        if side == _SIDE:
            return images
        key = [side, checksum(self.folder() / file for file in self.files())]
        shape = (len(images), 3, side, side)

        def decode() -> Decoded:
            return Decoded(shape, scale_images([images.transpose(0, 2, 3, 1)], side), {})

        return use_cache(type(self).__name__, key, decode, None, self.verify)[0]

    def _names(self, path: Path) -> dict[str, list[str]]:
        """Return the names of the classes in every kind of labels."""
        content = unpickle(path)
        with explain_decode_errors(path, REPLACE):
            keys = self._label_keys.items()
            return {field: convert_content(list[str], content[key]) for field, (_, key) in keys}

    def _batch(self, path: Path, names: Mapping[str, Sequence[str]]) -> dict[str, np.ndarray]:
        """Return images, uint8 [n, 3, 32, 32], and every kind of labels, int64 [n]."""
        content = unpickle(path)
        with explain_decode_errors(path, REPLACE):
            images = content["data"].reshape(-1, 3, 32, 32)
            batch = {"images": images}
            for field, (key, _) in self._label_keys.items():
                _, batch[field] = images_and_labels(
                    path, images.transpose(0, 2, 3, 1), content[key], len(names[field])
                )
        return batch


class CIFAR10(_Cifar):
    """CIFAR-10: 50,000 training and 10,000 test images of 3x32x32 in 10 classes (Krizhevsky, 2009).

    Files: root/cifar-10-batches-py/{batches.meta, data_batch_1 to 5, test_batch}.
    """

    md5 = {  # noqa: RUF012
        "cifar-10-batches-py/batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        "cifar-10-batches-py/data_batch_1": "c99cafc152244af753f735de768cd75f",
        "cifar-10-batches-py/data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "cifar-10-batches-py/data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "cifar-10-batches-py/data_batch_4": "634d18415352ddfa80567beed471001a",
        "cifar-10-batches-py/data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "cifar-10-batches-py/test_batch": "40351d587109b95175f43aff81a1287e",
    }
    _mean = (0.4914, 0.4822, 0.4465)
    _std = (0.2023, 0.1994, 0.2010)


_FINE, _COARSE = ("fine_labels", "fine_label_names"), ("coarse_labels", "coarse_label_names")


class CIFAR100(_Cifar):
    """CIFAR-100: 50,000 training and 10,000 test images of 3x32x32 in 100 classes, or 20 superclasses.

    Files: root/cifar-100-python/{meta, train, test} (Krizhevsky, 2009).
    """

    md5 = {  # noqa: RUF012
        "cifar-100-python/meta": "7973b15100ade9c7d40fb424638fde48",
        "cifar-100-python/train": "16019d7e3df5f24257cddd939b257f8d",
        "cifar-100-python/test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    }
    _mean = (0.5071, 0.4865, 0.4409)
    _std = (0.2673, 0.2564, 0.2762)

    labels: Literal["fine", "coarse"] = "fine"
    """``fine`` (100 classes) or ``coarse`` (20 superclasses)."""

    @property
    def _label_keys(self) -> dict[str, tuple[str, str]]:
        if self.labels == "fine":
            return {"labels": _FINE, "superclasses": _COARSE}
        return {"labels": _COARSE, "subclasses": _FINE}


_CHUNK = 1000  # images that are made together, so that making them needs little memory beside the result


def noise_levels(strongest: float, clients: int) -> np.ndarray:
    """Return each client's standard deviation, ``strongest * i / (clients - 1)``: float64 [clients]."""
    if clients < 2:
        raise Conflict("data.noise", f"is {strongest:g}, and rises from client to client", "use several")
    return strongest * np.arange(clients) / (clients - 1)


def with_noise(data: FederatedData, strongest: float, seed: int) -> FederatedData:
    """Add Gaussian noise to the images of all clients: none for the first, most for the last.

    Client i of N has the standard deviation ``strongest * i / (N - 1)``, in units of 0 to 255, in all its
    parts. The noise is drawn once per image; images are clipped to 0 to 255 and not rounded (Cai et al.,
    NeurIPS 2023, section F.3, which names neither unit nor clipping). Images then are float32, normalised, so
    they take four times the memory of the published ones.

    Args:
        data: with uint8 images.
        strongest: standard deviation of the last client.
        seed: of the noise.

    Returns:
        The same clients with new images (those that no client has are normalised only), and the clients'
        standard deviations among the settings, as ``noise_levels``.
    """
    dataset = data.dataset
    if any(data.shared.values()):
        raise Conflict("data.noise", f"is {strongest:g}, and clients share images: use another partition")
    levels = noise_levels(strongest, len(data))
    owner = np.full(len(dataset), -1)
    for client, client_data in enumerate(data.clients):
        owner[np.concatenate([client_data.train, client_data.val, client_data.test])] = client
    what = f"noise is {strongest:g}: {len(dataset):,} images as 32-bit numbers"
    check_memory(4 * dataset.inputs.size, what, "use smaller images, or no noise")
    images = np.empty(dataset.inputs.shape, np.float32)
    scale, shift = dataset.scaling
    for client in range(-1, len(data)):
        mine = np.flatnonzero(owner == client)
        rng = numpy_generator(seed, "image noise", max(client, 0))
        for start in range(0, len(mine), _CHUNK):
            chunk = mine[start : start + _CHUNK]
            x = dataset.inputs[chunk].astype(np.float32)
            if client >= 0 and levels[client] > 0:
                x += np.float32(levels[client]) * rng.standard_normal(x.shape, np.float32)
                np.clip(x, 0, 255, out=x)
            images[chunk] = x * scale + shift
    settings = {**data.settings, "noise_levels": levels.tolist()}
    return dataclasses.replace(data, dataset=dataclasses.replace(dataset, inputs=images), settings=settings)
