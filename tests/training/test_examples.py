from dataclasses import replace

import numpy as np
import pytest
import torch

from rayfl.data import Dataset
from rayfl.training.examples import Examples


def dataset(dtype=np.uint8):
    images = np.arange(3 * 2 * 4 * 5).reshape(3, 2, 4, 5).astype(dtype)
    zeros = np.zeros(3, dtype=np.int64)
    labels = np.array([2, 0, 1])
    return Dataset(
        images, labels, zeros, zeros.astype(np.uint8), ("a", "b", "c"), ("one",), (0.4, 0.25), (0.3, 0.125)
    )


@pytest.mark.parametrize("channels_last", [False, True])
def test_bytes_are_scaled_and_normalised(channels_last):
    images = Examples(dataset(), torch.device("cpu"), torch.float64, channels_last)
    x, y = images.batch(torch.tensor([2, 0]))
    raw = torch.from_numpy(dataset().inputs[[2, 0]]).double() / 255
    mean, std = torch.tensor([[0.4, 0.25], [0.3, 0.125]], dtype=torch.float64)
    assert torch.allclose(x, (raw - mean[:, None, None]) / std[:, None, None], rtol=0, atol=1e-14)
    assert y.tolist() == [1, 2]
    assert x.is_contiguous(memory_format=torch.channels_last) == channels_last


def test_numbers_are_used_as_they_are():
    images = Examples(dataset(np.float32), torch.device("cpu"), torch.float32, False)
    x, _ = images.batch(torch.tensor([1]))
    assert torch.equal(x[0], torch.from_numpy(dataset(np.float32).inputs[1]))
    x.zero_()
    assert images.batch(torch.tensor([1]))[0].sum() > 0  # a copy


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_arrays_that_run_backwards_are_the_same(dtype):
    forth = dataset(dtype)
    back = replace(forth, inputs=forth.inputs[::-1].copy()[::-1], labels=forth.labels[::-1].copy()[::-1])
    of = [Examples(data, torch.device("cpu"), torch.float32, False) for data in (forth, back)]
    for one, other in zip(*(examples.batch(torch.tensor([2, 0])) for examples in of), strict=True):
        assert torch.equal(one, other)


def test_a_private_copy_has_the_layout_of_the_images():
    images = Examples(dataset(), torch.device("cpu"), torch.float32, True)
    kernel = torch.randn(4, 2, 3, 3)
    copy = images.private_copy(kernel)
    assert torch.equal(copy, kernel)
    assert copy.data_ptr() != kernel.data_ptr()
    assert copy.is_contiguous(memory_format=torch.channels_last)
    assert images.private_copy(torch.randn(3, 4).T).is_contiguous()
