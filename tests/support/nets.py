"""Small smooth nets, random images and clients, in float64, where two ways to compute agree to rounding."""

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rayfl.data import TRAIN, Dataset
from rayfl.nets import SplitNet
from rayfl.randomness import numpy_generator
from rayfl.training import Client, Context, Net, Training
from rayfl.training.examples import Examples

SHAPE = (2, 6, 6)
CLASSES = 3


def smooth_split(
    batch_norm: bool = False, shape: tuple[int, int, int] = SHAPE, classes: int = CLASSES
) -> SplitNet:
    """A net of a hundred-odd numbers without kinks."""
    norms: list[list[nn.Module]] = [[nn.BatchNorm2d(3)], [nn.BatchNorm1d(5)]] if batch_norm else [[], []]
    conv = nn.Sequential(nn.Conv2d(shape[0], 3, 3), *norms[0], nn.Softplus(), nn.AvgPool2d(2), nn.Flatten())
    features = 3 * ((shape[1] - 2) // 2) * ((shape[2] - 2) // 2)
    fc = nn.Sequential(nn.Linear(features, 5), *norms[1], nn.Tanh())
    return SplitNet(conv, fc, nn.Linear(5, classes))


def smooth(shape: tuple[int, int, int], classes: int) -> SplitNet:
    """``smooth_split`` as an option ``net`` may name it."""
    return smooth_split(shape=shape, classes=classes)


def smooth_net(batch_norm: bool = False) -> Net:
    return Net(lambda: smooth_split(batch_norm), dtype=torch.float64)


def make_dataset(n: int = 200, seed: int = 0) -> Dataset:
    rng = numpy_generator(seed, "test images")
    return Dataset(
        inputs=rng.standard_normal((n, *SHAPE), dtype=np.float32),
        labels=rng.integers(0, CLASSES, n),
        domains=np.zeros(n, dtype=np.int64),
        origin=np.full(n, TRAIN, dtype=np.uint8),
        class_names=tuple("abc"),
        domain_names=("one",),
        mean=(0.0,) * SHAPE[0],
        std=(1.0,) * SHAPE[0],
    )


def make_images(n: int = 200, channels_last: bool = False, dtype: torch.dtype = torch.float64) -> Examples:
    return Examples(make_dataset(n), torch.device("cpu"), dtype, channels_last)


def make_client(
    net: Net,
    images: Examples | None = None,
    n: int = 12,
    *,
    id: int = 0,
    first: int = 0,
    round: int = 0,
    seed: int = 5,
    val: Sequence[int] = (),
    **training: Any,
) -> Client:
    """A client that owns the samples ``first`` to ``first + n``, and ``val`` for validation."""
    images = make_images() if images is None else images
    indices = torch.arange(first, first + n)
    counts = torch.bincount(images.batch(indices)[1], minlength=CLASSES)
    settings = Training(**{"precision": "float64", "lr": 0.1, "batch_size": 5, **training})
    own = torch.tensor(val, dtype=torch.int64)
    return Client(id, net, net.initial(seed), images, indices, counts, settings, seed, round, own)


def make_clients(net: Net, sizes: Sequence[int], **training: Any) -> list[Client]:
    """Clients of these sizes with data of their own from one dataset."""
    images = make_images(sum(sizes))
    starts = np.cumsum([0, *sizes]).tolist()
    return [make_client(net, images, n, id=k, first=starts[k], **training) for k, n in enumerate(sizes)]


async def only(fit: Any) -> Any:
    """A method that is one fit (or total)."""
    return await fit


def close(a: Any, b: Any, tolerance: float) -> bool:
    """Say whether two nests of tensors and numbers agree to an absolute difference."""
    if isinstance(a, Mapping):
        return list(a.keys()) == list(b.keys()) and all(close(a[k], b[k], tolerance) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(close(x, y, tolerance) for x, y in zip(a, b))
    if isinstance(a, Tensor):
        return a.shape == b.shape and bool(((a - b).abs() <= tolerance).all())
    return abs(a - b) <= tolerance


def same_bits(a: Any, b: Any) -> bool:
    """Say whether two nests of tensors and numbers are equal to the bit."""
    return close(a, b, 0.0)


Update = Coroutine[Any, Any, Any]


def make_context(
    net: Net, method: Any = None, population: int = 4, seed: int = 0, rounds: int = 1, **facts: Any
) -> Context:
    """Return the facts of a run with this net, prepared for a method if there is one."""
    modules = net.modules_of.items()
    shared = frozenset(n for n, m in modules if method is None or method.shared(net, n, m))
    averaging = "samples" if method is None else method.facts.averaging
    known = {
        "initial": net.initial(seed),
        "averaging": averaging,
        "nets": {},
        "nets_differ": False,
        "total_rounds": rounds,
        **facts,
    }
    context = Context(net=net, shared=shared, population=population, seed=seed, **known)
    return context if method is None else replace(context, prepared=method.prepare(context))
