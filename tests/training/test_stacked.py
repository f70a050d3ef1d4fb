"""Stacked execution gives every client what the loop gives it, and shares only what may be shared."""

import copy
import warnings
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from rayfl.training import Net, Params, stacked
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


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9, "epochs": 3},
        {"clip": 0.2, "epochs": 2},
        {"weight_decay": 0.1, "last_batch": "drop"},
        {"momentum": 0.5, "weight_decay": 0.01, "clip": 0.5, "epochs": 2, "lr": 0.3},
    ],
)
def test_stacked_is_the_loop(batch_norm, settings):
    clients = make_clients(smooth_net(batch_norm), RAGGED, **settings)
    looped, stacked = both(fedavg, clients)
    assert [f.steps for f in looped] == [f.steps for f in stacked]
    assert not any(same_bits(a.weights, b.weights) for a, b in pairwise(stacked))  # no client is lost
    for fitted in stacked:
        assert not fitted.weights.live
        assert all(t.untyped_storage().nbytes() == t.nbytes for t in fitted.weights.values())  # not a view
        if batch_norm:
            assert not same_bits(fitted.weights["fc.1.running_var"], clients[0].initial["fc.1.running_var"])


def test_trailing_batches_of_one_sample_on_batch_norm():
    clients = make_clients(smooth_net(batch_norm=True), (11, 12, 6, 16, 5), momentum=0.5, epochs=2)
    both(fedavg, clients)


def test_losses_that_take_turns():
    def method(client):
        net = client.net

        def first(w, batch, extra):
            return F.cross_entropy(net(w["a"], batch.x), batch.y)

        def second(w, batch, extra):
            return F.cross_entropy(net(w["a"], batch.x).detach() + net(w["b"], batch.x), batch.y)

        async def update():
            start = {"a": client.initial, "b": client.random_weights()}
            return await client.fit(start, (first, second))

        return update()

    clients = make_clients(smooth_net(), RAGGED, momentum=0.9, weight_decay=0.1, epochs=2)
    looped, _ = both(method, clients)
    assert looped[0].steps == len(clients[0].fit(clients[0].initial, clients[0].loss, epochs=4).batches)


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


def test_scalar_parameters_and_tensors_without_gradient():
    def loss(w, batch, extra):
        return ((batch.x.mean((1, 2, 3)) - w["a"]) ** 2).mean()

    async def method(client):
        entries = {"a": torch.tensor(0.5 + client.id).double(), "unused": torch.ones(2).double()}
        return await client.fit(Params(entries, frozenset(entries)), loss)

    _, stacked = both(method, make_clients(smooth_net(), RAGGED, clip=0.2, momentum=0.5, weight_decay=0.1))
    assert all(f.weights["unused"].tolist() == [1, 1] for f in stacked)


def test_totals():
    net = smooth_net(batch_norm=True)

    def sums(w, batch, factor):
        member = F.one_hot(batch.y, 3).to(batch.x.dtype)
        return {"sum": factor * member.T @ net.eval.features(w, batch.x), "n": (member.sum(0), member.sum())}

    async def method(client):
        w = (await client.fit(client.initial, client.loss)).weights
        return await client.total(sums, w, 1.0 + client.id), await client.total(sums, client.initial, 2.0)

    both(method, make_clients(net, (300, 17, 270, 9), batch_size=60, bn_single="eval"))


def test_totals_of_classes():
    """Clients have different numbers of samples of a class, and different numbers of classes."""
    net = smooth_net(batch_norm=True)

    def moments(w, batch, mean):
        z = net.eval.features(w, batch.x) - mean
        return z.T @ z

    async def method(client):
        w = (await client.fit(client.initial, client.loss)).weights
        return [
            await client.total(moments, w, torch.tensor(0.1 * client.id).double(), of_class=c)
            for c in client.class_counts.nonzero().flatten().tolist()
        ]

    both(method, make_clients(net, (300, 2, 270, 9), batch_size=60))


def test_numbers_in_extra_do_not_change_the_precision():
    images = make_images(30, dtype=torch.float32)
    net = Net(smooth_split)
    clients = [make_client(net, images, 5, id=k, first=5 * k, precision="float32") for k in range(3)]

    async def method(client):
        return await client.fit(
            client.initial,
            lambda w, batch, extra: extra["a"] * client.loss(w, batch) * extra["n"],
            {"a": 0.1 * client.id, "n": client.id},
            before_clip=lambda g, w, extra: g + extra["a"] * w.trainable(),
        )

    looped = run_loop([method(c) for c in again(clients)], lambda *_: None)
    stacked = run_stacked([method(c) for c in again(clients)], lambda *_: None)
    assert {t.dtype for f in stacked for t in f.weights.values()} == {torch.float32}
    assert close(looped, stacked, 1e-5)


# ---- schedule


@pytest.mark.parametrize(
    ("sizes", "epochs", "expected"),
    [
        # full batches first, then one call per distinct remainder, epoch by epoch
        ((12, 17, 9, 10, 19, 5), 1, [6, 4, 2, 2, 2]),
        ((12, 17, 9, 10, 19, 5), 2, [6, 4, 2, 2, 2] * 2),
        ((10, 10, 10), 2, [3, 3, 3, 3]),
        ((3, 4, 3), 1, [1, 2]),
    ],
)
def test_the_number_of_calls_is_the_smallest(calls, sizes, epochs, expected):
    clients = make_clients(smooth_net(), sizes, epochs=epochs)
    run_stacked([fedavg(c) for c in again(clients)], lambda *_: None)
    assert sorted(calls, reverse=True) == sorted(expected, reverse=True)
    remainders = {n % 5 for n in sizes} - {0}
    assert len(calls) == epochs * (max(n // 5 for n in sizes) + len(remainders))


def test_enlarged_last_batches_wait_for_each_other(calls):
    clients = make_clients(smooth_net(batch_norm=True), (11, 21, 12, 16, 6))  # fives, then 6, 6, 2, 6, 6
    run_stacked([fedavg(c) for c in again(clients)], lambda *_: None)
    assert calls == [4, 3, 1, 4, 1]


def test_dropped_remainders_cost_no_call(calls):
    clients = make_clients(smooth_net(), RAGGED, last_batch="drop")
    run_stacked([fedavg(c) for c in again(clients)], lambda *_: None)
    assert calls == [6, 4, 2]


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


def test_a_captured_value_is_not_shared(stacks):
    """Captured by the loss itself, by a function that it captures, and as a default."""
    clients = make_clients(smooth_net(), RAGGED)

    def method(kind):
        async def one(client):
            weight = torch.tensor(1.0 + client.id).double()

            def helper(value):
                return weight * value

            losses = {
                "closure": lambda w, b, e: weight * client.loss(w, b),
                "nested": lambda w, b, e: helper(client.loss(w, b)),
                "default": lambda w, b, e, weight=weight: weight * client.loss(w, b),
                "number": lambda w, b, e, n=1.0 + client.id: n * client.loss(w, b),
            }
            return await client.fit(client.initial, losses[kind])

        return one

    for kind in ("closure", "nested", "default", "number"):
        one = method(kind)
        looped = run_loop([one(c) for c in again(clients)], lambda *_: None)
        stacks.clear()
        stacked = run_stacked([one(c) for c in again(clients)], lambda *_: None)
        assert close(looped, stacked, 1e-9)
        assert sorted(stacks) == [[k] for k in range(len(clients))]


def test_a_rule_that_captures_is_not_shared_either(stacks):
    clients = make_clients(smooth_net(), RAGGED)

    async def method(client):
        pull = 0.1 * client.id
        return await client.fit(client.initial, client.loss, before_clip=lambda g, w, e: g + pull * w)

    looped = run_loop([method(c) for c in again(clients)], lambda *_: None)
    stacks.clear()
    stacked = run_stacked([method(c) for c in again(clients)], lambda *_: None)
    assert close(looped, stacked, 1e-9)
    assert len(stacks) == len(clients)


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


def test_extras_that_are_one_object_are_not_copied():
    shared = torch.zeros(3)
    own = [torch.full((2,), float(k)) for k in range(4)]
    extras = [{"shared": shared, "own": t, "number": 2.0, "k": k, "none": None} for k, t in enumerate(own)]
    leaves, dims, _ = stacked._stack_extras(extras)
    found = dict(zip(extras[0], zip(leaves, dims)))
    assert found["shared"][0] is shared
    assert found["number"] == (2.0, None)
    assert found["none"] == (None, None)
    assert found["shared"][1] is None
    assert found["own"][1] == 0
    assert torch.equal(found["own"][0], torch.stack(own))
    assert found["k"][0].tolist() == [0, 1, 2, 3]


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

    fits = [c.fit(c.initial, loss) for c in make_clients(net, [12, 7])]
    assert stacked.discrepancy([only(fit) for fit in fits], 1e-9) == ""
    assert set(seen) == {5, 4, 3}


def test_an_error_closes_the_other_clients():
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
        run_stacked([method(c) for c in again(clients)], lambda *_: None)
    assert sorted(closed) == [0, 1, 2]


def test_float32_on_a_smooth_net():
    images = make_images(sum(RAGGED), dtype=torch.float32)
    net = Net(lambda: smooth_split(True))
    starts = [sum(RAGGED[:k]) for k in range(len(RAGGED))]
    clients = [
        make_client(net, images, n, id=k, first=starts[k], precision="float32", momentum=0.5)
        for k, n in enumerate(RAGGED)
    ]
    looped = run_loop([fedavg(c) for c in again(clients)], lambda *_: None)
    stacked = run_stacked([fedavg(c) for c in again(clients)], lambda *_: None)
    assert close(looped, stacked, 1e-4)
