"""What a `Dataset` takes and refuses."""

import numpy as np
import pytest
import torch

from rayfl.data import Dataset
from rayfl.errors import BadValue, Conflict
from rayfl.training.examples import Examples
from tests.support.refusals import refused


def of(inputs, **fields):
    n = len(inputs)
    names = {"class_names": ("0", "1"), "domain_names": ("all",)}
    zeros = {"labels": np.zeros(n, np.int64), "domains": np.zeros(n, np.int64)}
    return Dataset(inputs=inputs, **{"origin": np.zeros(n, np.uint8)} | zeros | names | fields)


@pytest.mark.parametrize("shape", [(3, 2), (3, 2, 4), (3, 2, 4, 2)])
@pytest.mark.parametrize(("dtype", "layout"), [(np.float32, True), (np.float32, False), (np.int64, True)])
def test_inputs_of_any_shape_come_in_batches_as_they_are(shape, dtype, layout):
    """Vectors, sequences and images, numbers in the dtype of training, and token ids as int64."""
    inputs = np.arange(np.prod(shape), dtype=dtype).reshape(shape)
    dataset = of(inputs)
    assert dataset.shape == inputs.shape[1:]
    examples = Examples(dataset, torch.device("cpu"), torch.float64, channels_last=layout)
    wanted = torch.from_numpy(inputs) if inputs.dtype == np.int64 else torch.from_numpy(inputs).double()
    x, _ = examples.batch(torch.tensor([2, 0]))
    assert x.dtype == wanted.dtype
    assert torch.equal(x, wanted[[2, 0]])
    indices = torch.tensor([[2, 0], [1, 1]])
    x, y = examples.batch(indices, *examples.draw_changes([indices], [torch.tensor([5, 6])]))
    assert torch.equal(x, wanted[indices])
    assert y.shape == (2, 2)


FLOATS = np.zeros((3, 2), np.float32)


@pytest.mark.parametrize(
    ("inputs", "fields", "says"),
    [
        (np.zeros((3, 2), np.uint8), {}, "inputs must be images, uint8"),
        (np.zeros((3, 1, 1), np.uint8), {}, "inputs must be images, uint8"),
        (np.zeros(3, np.float32), {}, "inputs must be images"),
        (np.zeros((3, 2), np.float64), {}, "not float64"),
        (np.zeros((3, 2), np.int32), {}, "not int32"),
        (np.full((3, 2), -1), {}, "token ids must be at least 0"),
        (FLOATS, {"labels": np.zeros(2, np.int64)}, "labels must be"),
        (FLOATS, {"labels": np.full(3, 2)}, "labels must lie in"),
        (FLOATS, {"labels": np.zeros(3, np.int32)}, "labels must be"),
        (FLOATS, {"domains": np.ones(3, np.int64)}, "domains must lie in"),
        (FLOATS, {"origin": np.zeros(3, np.int64)}, "origin must be"),
        (FLOATS, {"origin": np.full(3, 4, np.uint8)}, r"origin must lie in 0\.\.3"),
        (FLOATS, {"superclasses": np.zeros(2, np.int64)}, "superclasses must be"),
        (FLOATS, {"subclasses": np.zeros(3, np.int32)}, "subclasses must be"),
        (FLOATS, {"subclasses": np.array([0, -1, 0])}, "subclasses must lie in 0"),
        (np.zeros((3, 1, 2, 2), np.float32), {"augment": "flip"}, "augment='flip' is none of"),
        (FLOATS, {"augment": "fedbn"}, "inputs are no images"),
        (FLOATS, {"users": np.zeros(2, np.int64)}, "users must be int64"),
        (FLOATS, {"users": np.zeros(3, np.int64)}, "users must lie in 0..-1"),
        (FLOATS, {"users": np.array([0, 1, -1]), "user_names": ("a", "b")}, "users must lie in 0..1"),
    ],
)
def test_what_is_no_dataset_is_refused(inputs, fields, says):
    with pytest.raises(ValueError, match=says):
        of(inputs, **fields)


@pytest.mark.parametrize(
    ("inputs", "fields", "kind", "place"),
    [
        (np.zeros((3, 1, 2, 2), np.uint8), {}, Conflict, "data.mean"),
        (np.zeros((3, 2), np.float32), {"mean": (0.0,)}, Conflict, "data.mean"),
        (np.zeros((3, 1, 2, 2), np.uint8), {"mean": (0.5,), "std": (0.0,)}, BadValue, "data.std"),
        (np.zeros((3, 1, 2, 2), np.uint8), {"mean": (0.5,), "std": (np.nan,)}, BadValue, "data.std"),
    ],
)
def test_every_channel_has_its_mean_and_deviation(inputs, fields, kind, place):
    with refused(kind, place):
        of(inputs, **fields)
