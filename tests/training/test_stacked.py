"""Stacked execution gives every client what the loop gives it, and shares only what may be shared."""

import copy
import warnings
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from rayfl.training import Net, stacked
from rayfl.training.loop import run_loop
from rayfl.training.noise import uniform
from rayfl.training.stacked import run_stacked
from tests.support.nets import (
    SHAPE,
    close,
    make_client,
    make_clients,
    make_images,
    only,
    same_bits,
    smooth_net,
    smooth_split,
)

RAGGED = (12, 17, 9, 10, 19, 5)  # with batches of five: remainders 2, 2, 4, none, 4, none


def both(method, clients):
    """Run the same method in both executions; warnings are errors."""

    def results(run):
        seen = [[] for _ in clients]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ends = run([method(c) for c in again(clients)], lambda k, fitted: seen[k].append(fitted))
        return ends, seen

    looped, stacked = results(run_loop), results(run_stacked)
    assert close(looped, stacked, 1e-9)
    return looped[0], stacked[0]


def again(clients):
    """The clients as at the beginning of a round: their next fit is the first."""
    for client in clients:
        client._fits = 0
    return clients


def fedavg(client):
    async def method():
        return await client.fit(client.initial, client.loss)

    return method()


@pytest.fixture
def calls(monkeypatch):
    """The number of clients in every vmapped step."""
    seen = []
    batches = stacked._stacked_batches

    def counted(requests):
        for epoch, rows, batch in batches(requests):
            seen.append(len(batch.y))
            yield epoch, rows, batch

    monkeypatch.setattr(stacked, "_stacked_batches", counted)
    return seen


@pytest.mark.parametrize(
    ("batch_norm", "sizes", "settings"),
    [
        (False, RAGGED, {}),
        (True, RAGGED, {"momentum": 0.9, "epochs": 3}),
        (False, RAGGED, {"clip": 0.2, "epochs": 2}),
        (True, RAGGED, {"weight_decay": 0.1, "last_batch": "drop"}),
        (True, RAGGED, {"momentum": 0.5, "weight_decay": 0.01, "clip": 0.5, "epochs": 2, "lr": 0.3}),
        (False, RAGGED, {"steps": 5, "work": [0.4, 2, 1]}),
        (True, (11, 12, 6, 16, 5), {"momentum": 0.5, "epochs": 2}),  # trailing batches of one sample
    ],
)
def test_stacked_is_the_loop(batch_norm, sizes, settings):
    clients = make_clients(smooth_net(batch_norm), sizes, **settings)
    looped, stacked = both(fedavg, clients)
    assert [f.steps for f in looped] == [f.steps for f in stacked]
    assert not any(same_bits(a.weights, b.weights) for a, b in pairwise(stacked))  # no client is lost
    for fitted in stacked:
        assert not fitted.weights.live
        assert all(t.untyped_storage().nbytes() == t.nbytes for t in fitted.weights.values())  # not a view
        if batch_norm:
            assert not same_bits(fitted.weights["fc.1.running_var"], clients[0].initial["fc.1.running_var"])


def test_one_client_and_clients_without_steps():
    both(fedavg, make_clients(smooth_net(), (12,)))

    async def some(client):
        return await client.fit(client.initial, client.loss, epochs=client.id)

    _, stacked = both(some, make_clients(smooth_net(), (7, 7, 7)))
    assert [f.steps for f in stacked] == [0, 2, 4]
    assert stacked[0].loss == 0


def test_rules_with_values_of_each_client():
    async def method(client):
        generator = torch.Generator().manual_seed(client.id)
        control = client.initial.trainable().map(
            lambda t: torch.randn(t.shape, generator=generator, dtype=t.dtype)
        )
        extra = {"start": client.random_weights().trainable(), "control": control, "mu": 0.1 * client.id}
        return await client.fit(
            client.initial,
            client.loss,
            extra,
            before_clip=lambda g, w, e: g + e["mu"] * (w - e["start"]),
            after_clip=lambda g, w, e: g + 0.01 * e["control"] / (1 + e["control"].norm()),
        )

    both(method, make_clients(smooth_net(True), RAGGED, clip=0.3, momentum=0.5, weight_decay=0.01, epochs=2))


def test_several_nets_with_a_teacher_and_noise():
    net = smooth_net(batch_norm=True)

    def loss(w, batch, teacher):
        x = batch.x + 0.1 * uniform(batch.key, batch.x.shape).to(batch.x.dtype)
        taught = F.log_softmax(net.eval(teacher, batch.x), 1)
        student = F.log_softmax(net(w["b"], x), 1)
        distance = (taught.exp() * (taught - student)).sum(1)  # per sample
        return F.cross_entropy(net(w["a"], x), batch.y, reduction="none") + distance

    async def method(client):
        start = {"a": client.initial, "b": client.random_weights()}
        return await client.fit(start, loss, start["a"])

    both(method, make_clients(net, RAGGED, clip=0.5, epochs=2))


def test_totals():
    """Also of classes, of which clients have different numbers, and different numbers of samples."""
    net = smooth_net(batch_norm=True)

    def sums(w, batch, factor):
        member = F.one_hot(batch.y, 3).to(batch.x.dtype)
        return {"sum": factor * member.T @ net.eval.features(w, batch.x), "n": (member.sum(0), member.sum())}

    async def method(client):
        w = (await client.fit(client.initial, client.loss)).weights
        found = [await client.total(sums, w, 1.0 + client.id), await client.total(sums, client.initial, 2.0)]
        own = torch.tensor(0.1 * client.id).double()
        for c in client.class_counts.nonzero().flatten().tolist():
            found.append(await client.total(sums, w, own, of_class=c))
        return found

    both(method, make_clients(net, (300, 2, 270, 9), batch_size=60))


def test_extras_are_copied_only_where_they_differ_and_keep_the_precision():
    shared = torch.zeros(3)
    own = [torch.full((2,), float(k)) for k in range(4)]
    extras = [
        {"shared": shared, "own": t, "number": 2.0 + 0 * k, "k": k, "a": 0.1 * k} for k, t in enumerate(own)
    ]
    leaves, dims, _ = stacked._stack_extras(extras)
    found = dict(zip(extras[0], zip(leaves, dims)))
    assert found["shared"][0] is shared
    assert found["number"] == (2.0, None)
    assert [found[name][1] for name in ("shared", "own", "k", "a")] == [None, 0, 0, 0]
    assert torch.equal(found["own"][0], torch.stack(own))
    assert found["k"][0].tolist() == [0, 1, 2, 3]
    assert [found[name][0].dtype for name in ("k", "a")] == [torch.int64, torch.float64]
    images, net = make_images(30, dtype=torch.float32), Net(smooth_split)
    clients = [make_client(net, images, 5, id=k, first=5 * k, precision="float32") for k in range(3)]

    async def method(client):
        return await client.fit(
            client.initial,
            lambda w, batch, extra: extra["a"] * client.loss(w, batch) * extra["n"],
            {"a": 0.1 * client.id, "n": client.id},
            before_clip=lambda g, w, extra: g + extra["a"] * w.trainable(),
        )

    looped, stacks = (
        run([method(c) for c in again(clients)], lambda *_: None) for run in (run_loop, run_stacked)
    )
    assert {t.dtype for fits in (looped, stacks) for f in fits for t in f.weights.values()} == {torch.float32}
    assert close(looped, stacks, 1e-5)


# ---- schedule


@pytest.mark.parametrize(
    ("sizes", "settings", "expected"),
    [
        # full batches first, then one call per distinct remainder, epoch by epoch
        (RAGGED, {"epochs": 2}, [6, 4, 2, 2, 2] * 2),
        (RAGGED, {"last_batch": "drop"}, [6, 4, 2]),
        ((10, 10, 10), {"epochs": 2}, [3, 3, 3, 3]),
        ((3, 4, 3), {}, [1, 2]),
    ],
)
def test_the_number_of_calls_is_the_smallest(calls, sizes, settings, expected):
    clients = make_clients(smooth_net(), sizes, **settings)
    run_stacked([fedavg(c) for c in again(clients)], lambda *_: None)
    assert sorted(calls, reverse=True) == sorted(expected, reverse=True)


def test_enlarged_last_batches_wait_for_each_other(calls):
    clients = make_clients(smooth_net(batch_norm=True), (11, 21, 12, 16, 6))  # fives, then 6, 6, 2, 6, 6
    run_stacked([fedavg(c) for c in again(clients)], lambda *_: None)
    assert calls == [4, 3, 1, 4, 1]


# ---- what may share a stack


@pytest.fixture
def stacks(monkeypatch):
    """The clients of every stacked fit."""
    seen = []
    fit_stacked = stacked.fit_stacked

    def recorded(requests):
        seen.append([r.client._id for r in requests])
        return fit_stacked(requests)

    monkeypatch.setattr(stacked, "fit_stacked", recorded)
    return seen


@pytest.mark.parametrize("kind", ["closure", "nested", "default", "number", "rule"])
def test_a_captured_value_is_not_shared(stacks, kind):
    """Captured by the loss itself, by a function that it captures, as a default, or by a rule."""
    clients = make_clients(smooth_net(), RAGGED)

    async def method(client):
        weight = torch.tensor(1.0 + client.id).double()

        def helper(value):
            return weight * value

        losses = {
            "closure": lambda w, b, e: weight * client.loss(w, b),
            "nested": lambda w, b, e: helper(client.loss(w, b)),
            "default": lambda w, b, e, weight=weight: weight * client.loss(w, b),
            "number": lambda w, b, e, n=1.0 + client.id: n * client.loss(w, b),
        }
        rule = (lambda g, w, e: g + weight * w) if kind == "rule" else None
        return await client.fit(client.initial, losses.get(kind, client.loss), before_clip=rule)

    looped = run_loop([method(c) for c in again(clients)], lambda *_: None)
    assert close(looped, run_stacked([method(c) for c in again(clients)], lambda *_: None), 1e-9)
    assert sorted(stacks) == [[k] for k in range(len(clients))]


def test_what_is_common_may_be_captured(stacks):
    net = smooth_net()
    clients = make_clients(net, RAGGED)
    down = {"weights": net.initial(3), "scale": 0.5}

    class Method:
        mu = 0.3

        async def local_update(self, client):
            def loss(w, batch, extra):
                near = (w - down["weights"]).sq_norm()
                return client.loss(w, batch) + self.mu * down["scale"] * near

            return await client.fit(client.initial, loss)

    both(Method().local_update, clients)
    assert stacks == [[0, 1, 2, 3, 4, 5]]


def test_clients_in_different_phases(stacks):
    clients = make_clients(smooth_net(), RAGGED, momentum=0.5)

    async def method(client):
        w = client.initial
        if client.id % 2:
            w = (await client.fit(w, client.loss, w, after_clip=lambda g, w, e: 2 * g)).weights
        for _ in range(client.id % 3):
            w = (await client.fit(w, client.loss, epochs=2)).weights
        last = await client.fit(w, client.loss)
        return last, client.id

    _, stacked = both(method, clients)
    assert [k for _, k in stacked] == [0, 1, 2, 3, 4, 5]
    assert stacks[0] == [1, 3, 5]  # stragglers first
    assert stacks[1] == [0, 1, 2, 3, 4, 5]  # then all together, whatever fit of the method it is
    assert len(stacks) <= 4


def test_different_settings_shapes_and_nets_do_not_share(stacks):
    small, norm = smooth_net(), smooth_net(batch_norm=True)
    images = make_images()
    clients = [
        make_client(small, images, 10, id=0, lr=0.1),
        make_client(small, images, 10, id=1, first=10, lr=0.2),
        make_client(norm, images, 10, id=2, first=20, lr=0.1),
        make_client(small, images, 10, id=3, first=30, lr=0.1),
    ]

    async def method(client):
        extra = torch.ones(1 + (client.id == 3))
        return await client.fit(client.initial, local_loss, extra)

    def local_loss(w, batch, extra):
        net = norm if "conv.1.weight" in w else small
        return F.cross_entropy(net(w, batch.x), batch.y) * extra.mean()

    both(method, clients)
    assert sorted(stacks) == [[0], [1], [2], [3]]


def test_a_client_with_one_sample_trains_apart_from_the_others(stacks):
    """Its BatchNorm layers use running statistics."""
    clients = make_clients(smooth_net(batch_norm=True), (7, 1, 9), bn_single="eval")
    both(fedavg, clients)
    assert sorted(stacks) == [[0, 2], [1]]


@pytest.mark.parametrize("last", ["fit", "total"])
def test_nets_let_go_of_the_stack(last):
    net = smooth_net(batch_norm=True)
    clients = make_clients(net, (7, 8, 7))

    async def method(client):
        w = (await client.fit(client.initial, client.loss)).weights
        if last == "fit":
            return w
        return w, await client.total(lambda w, batch, extra: net.eval(w, batch.x).sum(0), w)

    both(method, clients)
    copy.deepcopy(net)  # impossible while wrappers of vmap are in it
    w = net.initial(1)
    x = torch.ones(2, *SHAPE, dtype=torch.float64)
    assert torch.equal(net.eval(w, x), smooth_net(batch_norm=True).eval(w, x))


def test_a_trial_takes_five_samples_and_fewer():
    net, seen = smooth_net(), []

    def loss(w, batch, extra):
        seen.append(len(batch.y))
        return F.cross_entropy(net(w, batch.x), batch.y)

    fits = [c.fit(c.initial, loss) for c in make_clients(net, [12, 7], batch_size=8)]
    assert stacked.discrepancy([only(fit) for fit in fits], 1e-9) == ""
    assert set(seen) == {5, 4, 3}


@pytest.mark.parametrize("run", [run_loop, run_stacked])
def test_an_error_closes_the_other_clients(run):
    closed = []

    async def method(client):
        try:
            await client.fit(client.initial, client.loss)
            if client.id == 1:
                raise ValueError("mine")
            await client.fit(client.initial, client.loss)
        finally:
            closed.append(client.id)

    clients = make_clients(smooth_net(), (5, 5, 5))
    with pytest.raises(ValueError, match="mine"):
        run([method(c) for c in again(clients)], lambda *_: None)
    assert sorted(closed) == [0, 1, 2]
