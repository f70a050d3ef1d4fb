import math

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from rayfl.training import Params


def params(**tensors):
    """Entries of these values; names that begin with b are buffers."""
    made = {n: torch.tensor(v, dtype=torch.float64) for n, v in tensors.items()}
    return Params(made, frozenset(n for n in made if not n.startswith("b")))


A = params(w=[1.0, 2.0], b=[3.0])
B = params(w=[10.0, 20.0], b=[30.0])


def values(p):
    return {n: t.tolist() for n, t in p.items()}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (A + B, {"w": [11, 22], "b": [33]}),
        (B - A, {"w": [9, 18], "b": [27]}),
        (A * B, {"w": [10, 40], "b": [90]}),
        (B / A, {"w": [10, 10], "b": [10]}),
        (2 * A, {"w": [2, 4], "b": [6]}),
        (A * 2, {"w": [2, 4], "b": [6]}),
        (A / 2, {"w": [0.5, 1], "b": [1.5]}),
        (1 + A, {"w": [2, 3], "b": [4]}),
        (A - 1, {"w": [0, 1], "b": [2]}),
        (-A, {"w": [-1, -2], "b": [-3]}),
        (A * torch.tensor(2.0), {"w": [2, 4], "b": [6]}),
        (torch.tensor(2.0) * A, {"w": [2, 4], "b": [6]}),
        (A.zeros(), {"w": [0, 0], "b": [0]}),
        (A.map(torch.square), {"w": [1, 4], "b": [9]}),
    ],
)
def test_arithmetic_goes_name_by_name(result, expected):
    assert values(result) == expected
    assert result.train_names == {"w"}
    assert not result.live


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64])
def test_numbers_of_numpy_are_numbers(kind):
    """On either side, as those that a method has from ``np.mean``."""
    for result in (kind(2) * A, A * kind(2)):
        assert isinstance(result, Params)
        assert values(result) == {"w": [2, 4], "b": [6]}
    assert values(kind(1) + A) == {"w": [2, 3], "b": [4]}


def test_inner_products():
    assert A.dot(B).item() == 10 + 40 + 90
    assert A.sq_norm().item() == 1 + 4 + 9
    assert A.norm().item() == math.sqrt(14)
    assert Params({}, frozenset()).sq_norm().item() == 0


def test_the_order_of_names_is_that_of_the_left_operand():
    swapped = params(b=[30.0], w=[10.0, 20.0])
    assert list(A + swapped) == ["w", "b"]
    assert values(A + swapped) == values(A + B)


@pytest.mark.parametrize("operation", [lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a.dot(b)])
@pytest.mark.parametrize("other", [params(w=[1.0, 1.0]), params(w=[1.0, 1.0], b=[1.0], x=[1.0])])
def test_different_names_are_refused(operation, other):
    with pytest.raises(KeyError, match="different names"):
        operation(A, other)
    with pytest.raises(KeyError, match="different names"):
        operation(other, A)


def test_parts():
    net = params(w=[1.0], v=[2.0], b=[3.0])
    kept = net.select(lambda name: name in ("v", "b"))
    assert list(kept) == ["v", "b"]
    assert kept.train_names == {"v"}
    assert kept["v"] is net["v"]  # shared, not copied
    assert list(net.trainable()) == ["w", "v"]
    assert net.numel() == 3
    assert net.trainable().numel() == 2


def test_merge_prefers_the_other_and_keeps_the_order():
    net = params(w=[1.0], b=[3.0])
    merged = net.merge(params(b=[30.0], v=[5.0]))
    assert values(merged) == {"w": [1], "b": [30], "v": [5]}
    assert merged.train_names == {"w", "v"}


def test_a_part_of_the_working_copy_is_the_working_copy():
    live = Params(dict(A.tensors), A.train_names, live=True)
    assert live.select(lambda name: name == "w").live
    assert not live.merge(B).live  # B's statistics must not change
    assert not (live + B).live


def test_clone_shares_no_memory():
    copy = A.clone()
    copy["w"].add_(1)
    assert A["w"].tolist() == [1, 2]


def test_equality_is_identity():
    assert A == A
    assert A.clone() != A
    assert len({A, A.clone()}) == 2


def test_pytree_round_trip():
    leaves, spec = pytree.tree_flatten({"net": A, "n": 3})
    again = pytree.tree_unflatten(leaves, spec)
    assert values(again["net"]) == values(A)
    assert again["net"].train_names == A.train_names
    assert pytree.tree_flatten(A)[1] == pytree.tree_flatten(B)[1]
    assert pytree.tree_flatten(A)[1] != pytree.tree_flatten(A.trainable())[1]


def test_vmap_goes_over_the_first_dimension_of_every_entry():
    stack = params(w=[[1.0, 2.0], [3.0, 4.0]], b=[[5.0], [6.0]])
    norms = torch.func.vmap(lambda p: p.sq_norm())(stack)
    assert norms.tolist() == [1 + 4 + 25, 9 + 16 + 36]
    doubled = torch.func.vmap(lambda p, other: p + other, in_dims=(0, None))(stack, A)
    assert values(doubled) == {"w": [[2, 4], [4, 6]], "b": [[8], [9]]}
    assert doubled.train_names == {"w"}


def test_entries_are_replaced():
    w = A.replace({"b": torch.tensor([9.0])})
    assert values(w) == {"w": [1, 2], "b": [9]}
    assert list(w) == list(A)
    assert w.train_names == A.train_names
    with pytest.raises(KeyError, match=r"no entries \['c'\] to be replaced"):
        A.replace({"c": torch.zeros(1)})


def test_a_working_copy_with_other_statistics_is_none():
    live = Params(dict(A.tensors), A.train_names, live=True)
    assert live.replace({"w": torch.zeros(2)}).live
    assert not live.replace({"b": torch.zeros(1)}).live


def test_params_are_stacked():
    stacked = Params.stack([A, 2 * A, A - A])
    assert values(stacked) == {"w": [[1, 2], [2, 4], [0, 0]], "b": [[3], [6], [0]]}
    assert stacked.train_names == A.train_names
    with pytest.raises(KeyError, match=r"different names are not stacked; among them are \['b'\]"):
        Params.stack([A, A.trainable()])
