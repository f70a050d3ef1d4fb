"""Noise in images, at levels that differ between clients: the same task, with inputs of falling quality."""

import dataclasses

import numpy as np

from rayfl.data.federated import FederatedData
from rayfl.errors import Conflict
from rayfl.randomness import numpy_generator
from rayfl.system.memory import check_memory

_CHUNK = 1000  # images that are made together, so that making them needs little memory beside the result


def noise_levels(strongest: float, clients: int) -> np.ndarray:
    """Return each client's standard deviation, ``strongest * i / (clients - 1)``: float64 [clients]."""
    if clients < 2:
        raise Conflict(
            "data.noise",
            f"is {strongest:g}, from none at the first client to all at the last: use at least 2 clients",
        )
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
    levels = noise_levels(strongest, len(data))
    owner = np.full(len(dataset), -1)
    for client, client_data in enumerate(data.clients):
        owner[np.concatenate([client_data.train, client_data.val, client_data.test])] = client
    what = f"noise is {strongest:g}: {len(dataset):,} images as 32-bit numbers"
    check_memory(4 * dataset.inputs.size, what, "use smaller images, or no noise")
    images = np.empty(dataset.inputs.shape, np.float32)
    scale = np.array([1 / (255 * s) for s in dataset.std], np.float32)[:, None, None]
    shift = np.array([-m / s for m, s in zip(dataset.mean, dataset.std)], np.float32)[:, None, None]
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
