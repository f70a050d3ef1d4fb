import json
import math
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

from rayfl.training import Params, state
from rayfl.training.state import as_tensor, canonical, is_finite, pack, put_together, take_apart, unpack


def identical(a, b):
    if isinstance(a, Params):
        return isinstance(b, Params) and a.train_names == b.train_names and identical(a.tensors, b.tensors)
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(identical(a[k], b[k]) for k in a)
    return type(a) is type(b) and a == b


def test_apart_and_together_and_packed():
    made = torch.arange(6).reshape(2, 3)
    numbers = {
        str(dtype): made.to(dtype) for dtype in (torch.float32, torch.int32, torch.float16, torch.uint8)
    }
    tree = {
        "w": Params({"a.b": made.double().T, "0": torch.zeros(0, 3)}, frozenset({"a.b"})),
        "": {7: torch.tensor(True), -3: {}, "c": numbers},
        "values": {"none": None, "yes": True, "large": -(2**70), "small": 0.1},
        "empty": Params({}, frozenset()),
    }
    structure, found = take_apart(tree)
    assert identical(put_together(json.loads(json.dumps(structure)), found), tree)
    twice = {"top": tree, 7: {"inner": tree}}
    assert identical(unpack(pickle.loads(pickle.dumps(pack(twice)))), twice)


def test_a_packed_state_is_one_buffer_per_dtype_and_a_copy():
    x, y = torch.arange(3.0), torch.arange(2)
    packed = pack({"a": x, "b": {"c": y, "d": x * 2}})
    assert {k: b.size for k, b in packed.buffers.items()} == {"float32": 6, "int64": 2}
    assert sum(b.nbytes for b in packed.buffers.values()) == 6 * 4 + 2 * 8
    x.add_(1)
    assert unpack(packed)["a"].tolist() == [0, 1, 2]


def test_unpacked_tensors_have_memory_of_their_own():
    packed = pack({"a": torch.ones(3), "b": torch.ones(5)})
    first, second = unpack(packed), unpack(packed)
    first["a"].zero_()
    assert second["a"].tolist() == [1, 1, 1]
    assert first["b"].tolist() == [1] * 5
    assert first["b"].untyped_storage().nbytes() == 5 * 4


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.complex64, torch.bool]
)
def test_every_type_travels(dtype):
    tree = {"a": torch.tensor([[1, 0, 3]]).to(dtype), "b": torch.tensor(2.0).to(dtype)}
    found = unpack(pickle.loads(pickle.dumps(pack(tree))))
    assert all(found[key].dtype == dtype and found[key].shape == tree[key].shape for key in tree)
    assert all(torch.equal(found[key].float(), tree[key].float()) for key in tree)


def test_what_stays_lies_in_memory_like_what_has_travelled():
    base = torch.arange(24.0)
    tree = {
        "plain": base.view(4, 6),
        "turned": Params({"w": base.view(4, 6).T}, frozenset("w")),
        "part": base[4:10],
        "column": base.view(4, 6)[:, 0],
        "one_channel": torch.rand(3, 1, 2, 2).contiguous(memory_format=torch.channels_last),
        "repeated": torch.ones(1).expand(5),
        "learns": torch.ones(2, requires_grad=True),
        "n": 3,
        "none": None,
    }
    here, there = canonical(tree), unpack(pack(tree))
    found, expected = take_apart(here), take_apart(there)
    assert found[0] == expected[0]
    for name, tensor in found[1].items():
        assert torch.equal(tensor, expected[1][name])
        assert tensor.stride() == expected[1][name].stride()
        assert (tensor.storage_offset(), tensor.requires_grad) == (0, False)
    assert here["plain"].data_ptr() == base.data_ptr()  # no copy without need
    assert here["plain"] is not canonical(tree)["plain"]


def test_tensors_that_move_together_keep_their_shapes():
    moved = state.move_together([torch.ones(2, 3), torch.ones(())], torch.device("meta"))
    assert [(t.device.type, t.shape) for t in moved] == [("meta", (2, 3)), ("meta", ())]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": {"b": [1, 2]}}, "state/a/b is a list"),
        ({"a": "text"}, "state/a is a str"),
        ({"a": {3: object()}}, "state/a/3 is a object"),
        ({"a": np.zeros(2)}, "state/a is a ndarray"),
        ({"a": {(1, 2): 0}}, r"state/a: the key \(1, 2\)"),
        ({"a": {True: 0}}, "state/a: the key True"),
    ],
)
def test_anything_else_is_refused_by_name(tree, message):
    with pytest.raises(TypeError, match=message):
        take_apart(tree)


@pytest.mark.parametrize(
    "tree",
    [
        {1: torch.ones(1), "1": torch.zeros(1)},
        {"a": {"b": torch.ones(1)}, "a/b": torch.zeros(1)},
        {"a": Params({"b": torch.ones(1)}, frozenset()), "a/b": torch.zeros(1)},
    ],
)
def test_two_entries_of_one_name_are_refused_not_lost(tree):
    with pytest.raises(TypeError, match="two entries"):
        take_apart(tree)


def test_a_read_only_array_becomes_a_tensor_without_a_warning(recwarn):
    array = np.arange(3)
    array.flags.writeable = False
    assert as_tensor(array).tolist() == [0, 1, 2]
    assert not recwarn.list


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_what_is_finite(dtype):
    """Infinities that would cancel are found, and large numbers whose sum is infinite are finite."""
    most = torch.finfo(dtype).max
    for fine in ([], [0.0, -1.0], [most] * 9, [most, -most]):
        assert is_finite(torch.tensor(fine, dtype=dtype))
    for bad in ([math.nan, 0.0], [math.inf, -math.inf], [most, -math.inf]):
        assert not is_finite(torch.tensor(bad, dtype=dtype))


def test_numbers_that_are_finite():
    assert not any(map(is_finite, (math.nan, -math.inf)))
    assert all(map(is_finite, (0.5, 3, True, None, torch.tensor([2**62] * 9), torch.tensor([True]))))
