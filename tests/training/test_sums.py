"""Uploads are summed to the same bits whatever ran them, close to the exact sum, or named."""

import math
import pickle

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rayfl.errors import BadCode, Conflict
from rayfl.training import Gather, Mean, Params, Sum, weighted_mean
from rayfl.training.sums import _PIECE, Accumulator, ExactSum, combine, payload_bytes
from tests.support.nets import same_bits
from tests.support.refusals import refused

ERROR = 2.0**-48  # promised, per term


def parts_of(reductions, uploads, groups, processes=1):
    """Return what processes make of uploads (client -> upload, samples), dealt out in groups."""
    group_of = {i: tuple(group) for group in groups for i in group}
    all_of_them = [Accumulator(reductions, group_of) for _ in range(processes)]
    for k, group in enumerate(groups):
        one = all_of_them[k % processes]
        for client in group:
            upload, samples = uploads[client]
            problem, prepared = one.prepare(upload, samples)
            assert problem is None
            one.add(client, prepared, samples)
    return [one.parts() for one in all_of_them]


def result_of(reductions, uploads):
    return combine(reductions, parts_of(reductions, uploads, [(i,) for i in uploads]))


# ---- exact sums


@st.composite
def magnitudes(draw, most=2.0**37):
    """Numbers of either sign from 1e-30 up, whose magnitudes add up to less than the limit."""
    mantissa = draw(st.floats(-1, 1, allow_subnormal=False))
    return max(-most, min(most, mantissa * 2.0 ** draw(st.integers(-100, 37))))


@settings(max_examples=60)
@given(st.lists(magnitudes(), min_size=1, max_size=40), st.randoms(use_true_random=False))
@example([2.0**37 - 2.0**-15, 2.0**-7, -(2.0**37), 2.0**-47, 3 * 2.0**-48] * 8, None)
@example([2.0**37 - (2 * k + 1) * 2.0**-15 for k in range(63)], None)  # near the largest that is accepted
def test_a_sum_has_the_same_bits_in_any_order_and_grouping(terms, random):
    def total(order, cuts):
        sums = []
        for part in cuts(order):
            one = ExactSum(1)
            for x in part:
                one.add(torch.tensor([x], dtype=torch.float64), math.ceil(abs(x)))
            sums.append(one)
        whole = ExactSum(1)
        for one in sums:
            whole.merge(one)
        return whole.value().item()

    known = total(terms, lambda t: [t])
    shuffled = list(reversed(terms))
    if random is not None:
        random.shuffle(shuffled)
    assert total(shuffled, lambda t: [t]) == known
    assert total(shuffled, lambda t: [t[k::3] for k in range(3)]) == known
    assert total(sorted(terms), lambda t: [[x] for x in t]) == known
    assert abs(known - math.fsum(terms)) <= len(terms) * ERROR + math.ulp(known)


@pytest.mark.parametrize("size", [_PIECE - 1, _PIECE, 2 * _PIECE + 3])
def test_long_vectors_are_added_to_the_last_entry(size):
    """They are added piece by piece; multiples of 2^-30 add up exactly."""
    total, numbers = ExactSum(size), torch.arange(size, dtype=torch.float64)
    for factor in (1 + 2.0**-30, -3.0):
        total.add(numbers * factor, 3 * size)
    assert torch.equal(total.value(), numbers * (2.0**-30 - 2))
    assert (total.terms, total.reach) == (2, 6 * size)


def test_a_sum_that_could_not_be_exact_is_refused():
    one, other = ExactSum(1), ExactSum(1)
    one.add(torch.tensor([2.0**42], dtype=torch.float64), 2**42)
    other.add(torch.tensor([-(2.0**42)], dtype=torch.float64), 2**42)
    one.merge(other)  # at the limit
    with refused(Conflict, "the uploads"):
        one.add(torch.tensor([1.0], dtype=torch.float64), 1)
    with refused(Conflict, "the uploads"):
        other.merge(one)


def test_many_terms_make_the_same_bits_in_any_grouping(monkeypatch):
    def total(groups, most):
        monkeypatch.setattr("rayfl.training.sums._MOST_TERMS", most)
        sums = []
        for group in groups:
            sums.append(ExactSum(len(numbers[0])))
            for k in group:
                sums[-1].add(numbers[k].clone(), 1)
        for other in sums[1:]:
            sums[0].merge(other)
        return sums[0].value()

    generator = torch.Generator().manual_seed(0)
    numbers = torch.rand(60, 5, dtype=torch.float64, generator=generator) - 0.5
    numbers[:, 1] = 2.0**-8 - 2.0**-40  # below the coarse quantum, and all of one sign
    expected = total([range(60)], 2**13)
    assert expected[1] == 60 * (2.0**-8 - 2.0**-40)
    for groups in ([range(60)], [range(7), range(7, 60)], [range(k, 60, 20) for k in range(20)]):
        for most in (4, 9, 50):
            assert torch.equal(total(groups, most), expected)


def test_more_terms_than_ever_are_summed():
    one, other = ExactSum(1), ExactSum(1)
    for k in range(20_000):
        (one, other)[k % 3 == 0].add(torch.tensor([2.0**-8 + 2.0**-47], dtype=torch.float64), 1)
    one.merge(other)
    assert one.value().item() == 20_000 * (2.0**-8 + 2.0**-47)


# ---- accumulators


@st.composite
def cohorts(draw):
    clients = draw(st.integers(1, 12))
    scale = draw(st.sampled_from([1e-30, 1e-6, 1.0, 1e3, 1e9]))
    numbers = st.floats(-1, 1, width=32)
    uploads = {
        i: (
            {
                "w": torch.tensor([draw(numbers) * scale, draw(numbers)], dtype=torch.float32),
                "s": {"a": torch.tensor(draw(numbers), dtype=torch.float64), "n": draw(st.integers(-9, 9))},
                "trust": draw(st.floats(0.1, 1)) * 10.0 ** draw(st.integers(-3, 3)),
            },
            draw(st.integers(1, 500)),
        )
        for i in range(clients)
    }
    size = draw(st.integers(1, 4))
    groups = [tuple(range(k, min(k + size, clients))) for k in range(0, clients, size)]
    return uploads, groups


@settings(max_examples=60)
@given(cohorts(), st.integers(1, 5), st.sampled_from(["samples", "trust"]), st.randoms(use_true_random=False))
def test_sums_have_the_same_bits_however_groups_are_placed(cohort, processes, by, random):
    """And are close to the exact results; uploaded weights have all digits, and sizes from 1e-3 to 1e3."""
    uploads, groups = cohort
    reductions = {"w": Mean(by), "s": Sum(), "trust": Sum()}
    result = combine(reductions, parts_of(reductions, uploads, groups))
    order = list(groups)
    random.shuffle(order)
    parts = pickle.loads(pickle.dumps(parts_of(reductions, uploads, order, processes)))
    random.shuffle(parts)
    assert same_bits(combine(reductions, parts), result)
    weights = [n if by == "samples" else up["trust"] for up, n in uploads.values()]
    whole = math.fsum(weights)
    for k in range(2):
        terms = [n * float(up["w"][k]) for n, (up, _) in zip(weights, uploads.values())]
        exact = math.fsum(terms) / whole
        relative, least = (1e-15, 1) if by == "samples" else (1e-10, whole)
        bound = relative * math.fsum(map(abs, terms)) / whole + 2 * len(terms) * ERROR / least
        assert abs(result["w"][k].item() - exact) <= bound + 2.0**-24 * abs(exact) + 1e-45
    assert result["s"]["n"] == sum(up["s"]["n"] for up, _ in uploads.values())
    exact = math.fsum(float(up["s"]["a"]) for up, _ in uploads.values())
    assert abs(result["s"]["a"].item() - exact) <= ERROR * len(uploads) + 1e-15 * len(uploads)


def vector(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype)


UPLOADS = {4: ({"x": vector(1, 2)}, 1), 1: ({"x": vector(3, 4)}, 3), 7: ({"x": vector(-1, 0)}, 4)}


@pytest.mark.parametrize(
    ("reduction", "expected"), [(Mean("samples"), [0.75, 1.75]), (Mean("uniform"), [1, 2]), (Sum(), [3, 6])]
)
def test_means_and_sums(reduction, expected):
    assert result_of({"x": reduction}, UPLOADS)["x"].tolist() == pytest.approx(expected, abs=1e-14)


def test_gathered_payloads_come_by_client_number():
    parts = parts_of({"x": Gather()}, UPLOADS, [(4,), (7,), (1,)], processes=2)
    gathered = combine({"x": Gather()}, pickle.loads(pickle.dumps(parts)))["x"]
    assert list(gathered) == [1, 4, 7]
    assert gathered[7].tolist() == [-1, 0]
    uploads = {0: ({"x": vector(1)}, 1), 1: ({"x": {"a": vector(1, 2), "b": 3}}, 1)}
    gathered = result_of({"x": Gather()}, uploads)["x"]  # of different structures
    assert (gathered[0].tolist(), gathered[1]["b"]) == ([1], 3)


def test_gathered_whole_numbers_may_be_of_any_size():
    """They are not added up; what goes with them is looked at as ever."""
    gathered = {"x": Gather()}
    large = torch.tensor([2**62, -(2**44)])
    result = result_of(gathered, {k: ({"x": {"seeds": large + k, "n": 2**60}}, 1) for k in (0, 1)})["x"]
    assert [found["seeds"].tolist() for found in result.values()] == [(large + k).tolist() for k in (0, 1)]
    assert result[1]["n"] == 2**60
    problem, _ = Accumulator(gathered).prepare({"x": {"seeds": large, "w": torch.tensor([torch.nan])}}, 1)
    assert problem == "upload 'x' is not finite"
    assert "diverged" in (Accumulator({"x": Sum()}).prepare({"x": large}, 1)[0] or "")


def test_structures_come_back():
    """In memory of their own."""
    w = Params({"a": vector(1, 2, dtype=torch.float32), "b": torch.ones(2, 2)}, frozenset("a"))
    uploads = {
        i: ({"w": w * (i + 1), "n": {"deep": [torch.full((1, 2), float(i)), 0.1]}}, 2) for i in range(3)
    }
    result = result_of({"w": Mean("samples"), "n": Sum()}, uploads)
    assert isinstance(result["w"], Params)
    assert (result["w"].train_names, result["w"].live) == ({"a"}, False)
    assert result["w"]["a"].dtype == torch.float32
    assert result["w"]["a"].tolist() == [2, 4]
    assert result["w"]["b"].shape == (2, 2)
    assert result["n"]["deep"][0].tolist() == [[3, 3]]
    assert result["n"]["deep"][1] == pytest.approx(0.3, abs=1e-14)
    assert all(t.untyped_storage().nbytes() == t.nbytes for t in result["w"].values())
    empty = result_of({"x": Mean("samples")}, {0: ({"x": Params({}, frozenset())}, 2)})
    assert empty["x"].numel() == 0


def test_whole_numbers_numbers_and_truth_values():
    uploads = {
        i: ({"x": {"t": torch.tensor([1, i]), "n": i, "f": 0.1, "yes": torch.tensor([i > 0]), "b": i < 2}}, 1)
        for i in range(4)
    }
    total = result_of({"x": Sum()}, uploads)["x"]
    assert (total["t"].tolist(), total["n"], total["yes"].tolist(), total["b"]) == ([4, 6], 6, [3], 2)
    assert (total["t"].dtype, total["yes"].dtype) == (torch.int64, torch.int64)
    assert (type(total["n"]), type(total["b"])) == (int, int)
    assert total["f"] == pytest.approx(0.4, abs=1e-14)
    mean = result_of({"x": Mean("samples")}, uploads)["x"]
    assert (mean["t"].tolist(), mean["n"], mean["yes"].tolist()) == ([1, 1.5], 1.5, [0.75])
    assert mean["f"] == pytest.approx(0.1, abs=1e-14)


@pytest.mark.parametrize(("dtype", "each"), [(torch.uint8, 100), (torch.int16, 2**14), (torch.float16, 3e4)])
def test_a_sum_that_its_type_cannot_hold_is_refused(dtype, each):
    uploads = {i: ({"x": torch.tensor([1, each]).to(dtype)}, 1) for i in range(3)}
    fits = result_of({"x": Sum()}, {i: uploads[i] for i in range(2 if dtype != torch.int16 else 1)})["x"]
    assert fits.dtype == dtype
    with refused(BadCode, "the sum of 'x'"):
        result_of({"x": Sum()}, uploads)
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    ends = torch.tensor([limits.min, limits.max], dtype=dtype)
    assert torch.equal(result_of({"x": Sum()}, {0: ({"x": ends}, 1)})["x"], ends)
    assert result_of({"x": Mean("samples")}, uploads)["x"].tolist() == [1, each]


@pytest.mark.parametrize("reduction", [Mean("samples"), Sum(), Gather()])
def test_uploads_in_half_precision_have_any_norm(reduction):
    uploads = {0: ({"x": torch.full((1000,), 20.0, dtype=torch.float16)}, 1)}
    found = result_of({"x": reduction}, uploads)["x"]
    assert ((found[0] if isinstance(reduction, Gather) else found) == 20).all()


def test_a_key_that_only_some_upload():
    uploads = {
        0: ({"x": vector(2), "y": vector(10)}, 3),
        1: ({"x": vector(4)}, 1),
        2: ({"x": vector(4), "y": vector(40)}, 1),
    }
    result = result_of({"x": Mean("samples"), "y": Sum(), "z": Sum()}, uploads)
    assert (result["y"].item(), result["x"].item()) == (50, pytest.approx(14 / 5))
    assert "z" not in result
    assert combine({"x": Mean("samples"), "y": Sum(), "z": Gather()}, []) == {}
    for reductions in ({"x": Mean("samples")}, TRUSTED):  # of which nobody took part
        assert combine(reductions, [Accumulator(reductions).parts()]) == {}


def test_different_structures_are_refused():
    for a, b in [
        ({"x": vector(1)}, {"x": vector(1, 2)}),
        ({"x": vector(1)}, {"x": vector(1, dtype=torch.float32)}),
        ({"x": {"a": vector(1)}}, {"x": {"b": vector(1)}}),
        ({"x": Params({"a": vector(1)}, frozenset("a"))}, {"x": Params({"a": vector(1)}, frozenset())}),
    ]:
        uploads = {0: (a, 1), 1: (b, 1)}
        with refused(BadCode, "the uploads"):
            result_of({"x": Sum()}, uploads)
        parts = [parts_of({"x": Sum()}, uploads, [(k,)])[0] for k in uploads]  # each fine in its own process
        with refused(BadCode, "the uploads"):
            combine({"x": Sum()}, parts)


DECLARED = {"x": Mean("samples"), "y": Sum(), "z": Gather()}


@pytest.mark.parametrize(
    ("reductions", "keys", "says"),
    [
        (DECLARED, "xyab", "uploads 'a', but `uploads` of the method declares 'x', 'y', 'z'"),
        (DECLARED, "yz", "does not upload 'x'"),
        ({}, "x", "declares nothing"),
        ({"x": Mean("w"), "w": Sum()}, "x", "'w'"),
        ({"x": Mean("w")}, "xw", "'w'"),
    ],
)
def test_keys_are_those_that_are_declared(reductions, keys, says):
    with pytest.raises(TypeError, match=says):
        Accumulator(reductions).prepare(dict.fromkeys(keys, 1.0), 1)


def test_what_is_summed_or_gathered_may_be_missing():
    one = Accumulator(DECLARED)
    assert [one.prepare(dict.fromkeys(fine, vector(1)), 1)[0] for fine in ("xyz", "x")] == [None, None]
    assert Accumulator({}).prepare({}, 1) == (None, {})


@pytest.mark.parametrize("reduction", [Mean("samples"), Sum(), Gather()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("bad", "problem"),
    [(math.nan, "not finite"), (math.inf, "not finite"), (-math.inf, "not finite"), (1e30, "diverged")],
)
def test_bad_uploads_are_found_and_named(reduction, dtype, bad, problem):
    payload = {"a": torch.zeros(100, dtype=dtype), "b": vector(1, bad, dtype=dtype)}
    found, prepared = Accumulator({"fine": Sum(), "x": reduction}).prepare(
        {"fine": vector(1), "x": payload}, 10
    )
    assert found is not None
    assert "'x'" in found
    assert problem in found
    assert "x" not in prepared


def test_large_uploads_count_with_their_weight():
    one = Accumulator({"x": Mean("samples")})
    assert one.prepare({"x": vector(1e9)}, 1000)[0] is None
    assert "diverged" in (one.prepare({"x": vector(1e9)}, 10_000)[0] or "")


# ---- means weighted by what is uploaded

TRUSTED = {"x": Mean("trust"), "trust": Sum()}


def trusted(*pairs):
    """Client -> upload of a vector and its weight, and samples, which do not count."""
    return {i: ({"x": vector(*x), "trust": weight}, 7 + i) for i, (x, weight) in enumerate(pairs)}


def test_a_mean_by_uploaded_weights():
    """(1 * 0.5 + 3 * 1.5 + 100 * 0) / 2; numbers and tensors of one number serve as weights."""
    uploads = trusted(([1.0, 2.0], 0.5), ([3.0, -2.0], torch.tensor(1.5)), ([100.0, 100.0], 0))
    assert result_of({"x": Mean("trust"), "trust": Gather()}, uploads)["x"].tolist() == [2.5, -1.0]
    result = result_of(TRUSTED, trusted(([1.0], 0.5), ([3.0], 1.5)))
    assert (result["x"].item(), result["trust"]) == (2.5, pytest.approx(2))
    w = Params({"a": vector(2, dtype=torch.float32)}, frozenset("a"))
    uploads = {i: ({"x": w * i, "trust": float(i)}, 1) for i in (1, 3)}
    mean = result_of(TRUSTED, uploads)["x"]
    assert (mean["a"].item(), mean["a"].dtype, mean.train_names) == (5.0, torch.float32, {"a"})


@pytest.mark.parametrize(
    "weight", [-1.0, -1e-30, math.nan, math.inf, "1", vector(1, 2), vector(math.nan), 1e30, {"a": 1}]
)
def test_weights_that_are_none_are_found_and_named(weight):
    reductions = {"x": Mean("trust"), "trust": Gather()}
    found, prepared = Accumulator(reductions).prepare({"x": vector(1), "trust": weight}, 10)
    assert found is not None
    assert found.startswith("upload 'trust' is ")
    assert found.endswith("as a weight of the mean of 'x' it must be one finite number, 0 or more")
    assert "x" not in prepared


@pytest.mark.parametrize("weights", [(0.0, 0.0), (1e-9, 1e-10)])
def test_weights_that_are_all_zero_have_no_mean(weights):
    with refused(BadCode, "the weights 'trust'"):
        result_of(TRUSTED, trusted(*(([1.0], w) for w in weights)))


# ---- means of what is gathered


def test_a_mean_with_weights_of_ones_own():
    gathered = {3: {"w": vector(1, 2), "n": 1}, 5: {"w": vector(3, 6), "n": 3}}
    mean = weighted_mean(gathered, {5: 3.0, 3: 1.0})
    assert (mean["w"].tolist(), mean["n"]) == ([2.5, 5.0], 2.5)
    w = Params({"a": vector(1, 2, dtype=torch.float32)}, frozenset("a"))
    mean = weighted_mean([w, 3 * w], [0.2, 0.2])
    assert (mean["a"].tolist(), mean["a"].dtype, mean.train_names) == ([2, 4], torch.float32, {"a"})


PAIR = [vector(1), vector(2)]


@pytest.mark.parametrize(
    ("gathered", "weights", "place"),
    [
        *((PAIR, weights, "weighted_mean") for weights in ([1.0], [1.0, -1.0], [0.0, 0.0])),
        *((PAIR, [bad, 1.0], "weighted_mean") for bad in (math.nan, math.inf)),
        *(({1: vector(1), 2: vector(2)}, weights, "weighted_mean") for weights in ({1: 1.0}, [1.0, 1.0])),
        ({1: vector(1), 2: vector(2)}, {1: 1.0, 2: 1.0, 3: 1.0}, "weighted_mean"),
        ([vector(1), vector(1, 2)], [1, 1], "the uploads"),
    ],
)
def test_weights_that_make_no_mean_are_refused(gathered, weights, place):
    """There is one for each payload, and payloads are of one structure."""
    with refused(BadCode, place):
        weighted_mean(gathered, weights)


def test_bytes():
    w = Params({"a": torch.zeros(3), "b": torch.zeros(2, dtype=torch.float64)}, frozenset())
    assert payload_bytes(w) == 3 * 4 + 2 * 8
    assert payload_bytes({"w": w, "n": 3, "t": torch.zeros(5, dtype=torch.uint8), "none": None}) == 28 + 4 + 5
    parts = parts_of({"x": Sum(), "g": Gather()}, {0: ({"x": vector(1, 2), "g": vector(1)}, 1)}, [(0,)])[0]
    assert parts["x"].nbytes == 2 * 2 * 8
    assert parts["g"].nbytes == 8
