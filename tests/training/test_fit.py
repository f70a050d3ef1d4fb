"""One client's fit, carried out in the loop, against plain PyTorch and against sums done by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rayfl.errors import BadValue
from rayfl.nets import SplitNet
from rayfl.training import Fitted, Net, Params, Training
from rayfl.training.loop import run_loop
from rayfl.training.noise import step_keys, uniform
from rayfl.training.optimisers import SGD, Descent
from rayfl.training.schedules import Exponential
from tests.support.nets import (
    CLASSES,
    close,
    make_client,
    make_images,
    only,
    same_bits,
    smooth_net,
    smooth_split,
)
from tests.support.refusals import refused


def run(awaitable):
    return run_loop([only(awaitable)], lambda *_: None)[0]


def batches_of(client, **options):
    """The index batches that a fit of this client would see."""
    return client.fit(client.initial, client.loss, **options).batches


def plain_sgd(client, batches, loss=None, clip=0.0, **optimiser):
    """Train the client's net as a module with torch.optim.SGD over the given batches."""
    module = smooth_split(client.net.has_batch_norm).double()
    module.load_state_dict(dict(client.initial), strict=False)
    module.train()
    sgd = torch.optim.SGD(module.parameters(), **optimiser)
    losses = []
    for indices in batches:
        x, y = client._examples.batch(indices)
        sgd.zero_grad()
        value = F.cross_entropy(module(x), y) if loss is None else loss(module, x, y)
        value.backward()
        if clip:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        sgd.step()
        losses.append(value.item())
    return module.state_dict(), sum(losses) / len(losses)


SETTINGS = [
    {},
    {"momentum": 0.9},
    {"weight_decay": 0.1},
    {"clip": 0.3},
    {"momentum": 0.5, "weight_decay": 0.01, "clip": 0.5, "lr": 0.3},
]


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(("n", "batch_size", "epochs"), [(12, 12, 1), (12, 100, 3), (17, 5, 2), (16, 5, 3)])
def test_a_fit_is_plain_sgd(batch_norm, settings, n, batch_size, epochs):
    client = make_client(smooth_net(batch_norm), n=n, batch_size=batch_size, epochs=epochs, **settings)
    batches = batches_of(client, stream=0)
    fitted = run(client.fit(client.initial, client.loss, stream=0))
    expected, loss = plain_sgd(client, batches, **{"lr": 0.1, **settings})
    assert fitted.steps == len(batches)
    assert close(dict(fitted.weights), {n: expected[n] for n in fitted.weights}, 1e-12)
    assert abs(fitted.loss - loss) < 1e-12
    assert not fitted.weights.live
    assert fitted.weights.train_names == client.initial.train_names


def test_losses_take_turns_and_what_they_do_not_use_rests():
    """Two nets, an epoch each in turn, are two optimisers that both keep their momentum over the epochs."""
    settings = {"momentum": 0.9, "weight_decay": 0.1}
    client = make_client(smooth_net(), n=12, batch_size=5, epochs=2, **settings)
    net, start = client.net, {"a": client.initial, "b": client.random_weights()}

    def first(w, batch, extra):
        return F.cross_entropy(net(w["a"], batch.x), batch.y)

    def second(w, batch, extra):
        return F.cross_entropy(net(w["a"], batch.x).detach() + net(w["b"], batch.x), batch.y)

    awaitable = client.fit(start, (first, second), stream=0)
    batches = awaitable.batches
    fitted = run(awaitable)
    assert fitted.steps == len(batches) == 3 * 4
    a, b = (smooth_split().double() for _ in start)
    for module, w in zip((a, b), start.values()):
        module.load_state_dict(dict(w))
    of_a, of_b = (torch.optim.SGD(module.parameters(), lr=0.1, **settings) for module in (a, b))
    for number, indices in enumerate(batches):
        x, y = client._examples.batch(indices)
        own = number // 3 % 2 == 0
        (of_a if own else of_b).zero_grad()
        F.cross_entropy(a(x) if own else a(x).detach() + b(x), y).backward()
        (of_a if own else of_b).step()
    for name, module in (("a", a), ("b", b)):
        assert close(dict(fitted.weights[name]), module.state_dict(), 1e-12)


def test_full_batch_training_needs_no_batch_order():
    client = make_client(smooth_net(), n=12, batch_size=12, epochs=4, momentum=0.9)
    fitted = run(client.fit(client.initial, client.loss))
    expected, _ = plain_sgd(client, [client._indices] * 4, lr=0.1, momentum=0.9)
    assert close(dict(fitted.weights), dict(expected), 1e-12)


def test_the_start_is_left_alone_and_memory_is_not_shared():
    client = make_client(smooth_net(batch_norm=True))
    before = client.initial.clone()
    fitted = run(client.fit(client.initial, client.loss))
    assert same_bits(client.initial, before)
    assert not same_bits(fitted.weights["conv.1.running_mean"], before["conv.1.running_mean"])
    starts = {t.data_ptr() for t in client.initial.values()}
    assert not starts & {t.data_ptr() for t in fitted.weights.values()}
    assert all(not t.requires_grad and t.is_contiguous() for t in fitted.weights.values())


# ---- batches


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize(
    ("n", "last_batch", "sizes"),
    [
        (12, "keep", [5, 5, 2]),
        (12, "drop", [5, 5]),
        (10, "drop", [5, 5]),
        (3, "keep", [3]),
        (3, "drop", [3]),  # fewer samples than one batch: nothing would be left
        (11, "keep", [5, 5, 1]),
    ],
)
def test_batch_sizes(n, last_batch, sizes, epochs):
    client = make_client(smooth_net(), n=n, last_batch=last_batch, epochs=epochs)
    batches = batches_of(client)
    assert [len(b) for b in batches] == sizes * epochs
    for k in range(epochs):
        seen = torch.cat(batches[k * len(sizes) : (k + 1) * len(sizes)])
        assert len(seen.unique()) == len(seen)
        assert set(seen.tolist()) <= set(range(n))


@pytest.mark.parametrize(("n", "sizes"), [(11, [5, 6]), (6, [6]), (12, [5, 5, 2]), (5, [5])])
def test_batch_norm_never_sees_one_sample(n, sizes):
    client = make_client(smooth_net(batch_norm=True), n=n, epochs=2)
    batches = batches_of(client)
    assert [len(b) for b in batches] == sizes * 2
    for epoch in (batches[: len(sizes)], batches[len(sizes) :]):
        assert sorted(torch.cat(epoch).tolist()) == list(range(n))  # merged within its own epoch


def test_batch_norm_of_one_sample_uses_running_statistics():
    """Batch norm with one training sample uses running statistics."""
    client = make_client(smooth_net(batch_norm=True), n=1, bn_single="eval")
    fitted = run(client.fit(client.initial, client.loss))
    assert same_bits(fitted.weights["conv.1.running_var"], client.initial["conv.1.running_var"])
    assert not same_bits(fitted.weights["conv.1.weight"], client.initial["conv.1.weight"])


def order(client, **options):
    return [b.tolist() for b in batches_of(client, **options)]


def test_what_the_order_of_batches_depends_on():
    """The batch order depends on seed client round and stream only."""
    net = smooth_net()
    known = order(make_client(net, id=1, round=2, seed=3), stream=4)
    torch.manual_seed(99)
    assert order(make_client(net, id=1, round=2, seed=3, lr=7.0, momentum=0.5), stream=4) == known
    for other in (
        {"id": 2, "round": 2, "seed": 3},
        {"id": 1, "round": 3, "seed": 3},
        {"id": 1, "round": 2, "seed": 4},
    ):
        assert order(make_client(net, **other), stream=4) != known
    assert order(make_client(net, id=1, round=2, seed=3), stream=5) != known


def test_the_stream_is_the_number_of_the_fit_unless_given():
    client = make_client(smooth_net())
    first, second, again = order(client), order(client), order(client, stream=0)
    assert first == again != second
    assert order(client) == order(make_client(smooth_net()), stream=3)  # a given stream is counted too


def test_epochs_differ_in_their_order():
    batches = order(make_client(smooth_net(), n=10, epochs=2))
    assert batches[:2] != batches[2:]


def test_epochs_of_a_fit():
    client = make_client(smooth_net(), n=10, epochs=1)
    assert len(order(client, epochs=3)) == 6
    nothing = run(client.fit(client.initial, client.loss, epochs=0))
    assert nothing[1:] == (0, 0.0, 0.0)
    assert same_bits(nothing.weights, client.initial)


# ---- the loss


def test_a_loss_may_have_one_value_per_sample():
    client = make_client(smooth_net(), momentum=0.5)

    def per_sample(w, batch, extra):
        return F.cross_entropy(client.net(w, batch.x), batch.y, reduction="none")

    one = run(client.fit(client.initial, client.loss, stream=0))
    other = run(client.fit(client.initial, per_sample, stream=0))
    assert close(one, other, 1e-12)


def test_extra_reaches_the_loss():
    client = make_client(smooth_net())

    def loss(w, batch, extra):
        return extra["factor"] * client.loss(w, batch) + extra["pull"] * (w - extra["w"]).sq_norm()

    extra = {"factor": 2.0, "pull": torch.tensor(0.5, dtype=torch.float64), "w": client.initial}
    batches = batches_of(client, stream=0)
    fitted = run(client.fit(client.initial, loss, extra, stream=0))

    def reference(module, x, y):
        distance = sum((p - client.initial[n]).square().sum() for n, p in module.named_parameters())
        return 2.0 * F.cross_entropy(module(x), y) + 0.5 * distance

    expected, _ = plain_sgd(client, batches, reference, lr=0.1)
    assert close(dict(fitted.weights), dict(expected), 1e-12)


FACTS = ["id", "initial", "samples", "class_counts", "lr", "round"]


@pytest.mark.parametrize("fact", FACTS)
@pytest.mark.parametrize("where", ["loss", "before_clip", "correct", "total"])
def test_facts_of_one_client_cannot_be_read_for_many(fact, where):
    """Facts of one client cannot be read where one function serves many."""
    client = make_client(smooth_net(), n=4)

    def nosy(*args):
        getattr(client, fact)
        return args[0]

    def nosy_loss(w, batch, extra):
        getattr(client, fact)
        return client.loss(w, batch)

    requests = {
        "loss": lambda: client.fit(client.initial, nosy_loss),
        "before_clip": lambda: client.fit(client.initial, client.loss, before_clip=nosy),
        "correct": lambda: client.fit(client.initial, client.loss, after_clip=nosy),
        "total": lambda: client.total(nosy_loss, client.initial),
    }
    with pytest.raises(RuntimeError, match=rf"client\.{fact} differs between clients.*extra"):
        run(requests[where]())
    getattr(client, fact)  # and outside it can be read again


def test_facts():
    client = make_client(smooth_net(), n=7, id=3, round=2, lr=0.5, schedule=Exponential(decay=0.1))
    assert (client.id, client.samples, client.round, client.classes) == (3, 7, 2, 3)
    assert client.class_counts.sum() == 7
    assert client.lr == pytest.approx(0.005)


def test_random_weights_belong_to_the_client_alone():
    """Nobody's are the initial ones, and they are the same in every round."""
    net = smooth_net()
    drawn = [make_client(net, id=i).random_weights()["head.weight"] for i in range(4)]
    found = [*drawn, make_client(net).initial["head.weight"]]
    assert len({w.numpy().tobytes() for w in found}) == 5
    assert same_bits(make_client(net, id=2, round=3).random_weights()["head.weight"], drawn[2])


def test_noise_belongs_to_client_round_stream_and_step():
    net = smooth_net()

    def draws(client, stream=0):
        seen = []

        def loss(w, batch, extra):
            seen.append(uniform(batch.key, (4,)).tolist())
            return client.loss(w, batch)

        run(client.fit(client.initial, loss, stream=stream))
        return seen

    first = draws(make_client(net))
    assert draws(make_client(net)) == first
    others = [make_client(net, id=1), make_client(net, round=1), make_client(net, seed=6)]
    rows = [*first, *draws(make_client(net), 1), *(row for other in others for row in draws(other))]
    assert len({tuple(row) for row in rows}) == len(rows)


# ---- the update


def quadratic():
    """A 'net' of three numbers whose loss is by hand: gradient of a is 3, of b is 4; c is not used."""
    values = {"a": 1.0, "b": 2.0, "c": 5.0, "buffer": 7.0}
    w = Params({n: torch.tensor([v], dtype=torch.float64) for n, v in values.items()}, frozenset("abc"))
    return w, lambda w, batch, extra: (3 * w["a"] + 4 * w["b"]).sum()


def numbers(w):
    return {n: t.item() for n, t in w.items()}


def test_tensors_that_the_loss_does_not_use_are_left_alone():
    w, loss = quadratic()
    client = make_client(smooth_net(), n=2, momentum=0.9, weight_decay=0.5, clip=1.0)
    fitted = run(client.fit(w, loss, epochs=3))
    assert numbers(fitted.weights)["c"] == 5
    assert numbers(fitted.weights)["buffer"] == 7


def test_the_order_of_a_step():
    """Gradient (3, 4); before_clip adds w - (0, 0) = (1, 2): (4, 6); clip to norm 1; after_clip adds
    (10, 20); weight decay 0.5 adds (0.5, 1); lr 0.1."""
    w, loss = quadratic()
    client = make_client(smooth_net(), n=2, momentum=0.9, weight_decay=0.5, clip=1.0, lr=0.1)
    extra = {"zero": w.select(lambda n: n in "ab").zeros(), "control": {"a": 10.0, "b": 20.0, "c": 0.0}}

    def before_clip(g, w, extra):
        assert list(g) == list(w) == ["a", "b", "c"]  # trainable entries only
        pulled = {n: g[n] + (w[n] - extra["zero"][n] if n in "ab" else 0) for n in g}
        return Params(pulled, g.train_names)

    def after_clip(g, w, extra):
        assert math.isclose(g.norm().item(), 1, rel_tol=1e-6)
        return Params({n: t + extra["control"][n] for n, t in g.items()}, g.train_names)

    fitted = run(client.fit(w, loss, extra, before_clip=before_clip, after_clip=after_clip))
    scale = 1 / (math.sqrt(4**2 + 6**2) + 1e-6)
    a = 1 - 0.1 * (4 * scale + 10 + 0.5 * 1)
    b = 2 - 0.1 * (6 * scale + 20 + 0.5 * 2)
    assert numbers(fitted.weights) == pytest.approx({"a": a, "b": b, "c": 5, "buffer": 7}, abs=1e-12)


def test_gradients_of_a_rule_count_by_name_not_by_place():
    w, loss = quadratic()
    client = make_client(smooth_net(), n=2, lr=0.1)

    def swap(g, w, extra):
        return Params({n: g[n] for n in ("c", "b", "a")}, g.train_names)

    assert numbers(run(client.fit(w, loss, after_clip=swap)).weights)["a"] == pytest.approx(1 - 0.1 * 3)
    with pytest.raises(KeyError, match="b"):
        run(client.fit(w, loss, after_clip=lambda g, w, _: g.select(lambda n: n == "a")))


def test_rules_do_not_build_a_graph():
    client = make_client(smooth_net())

    def rule(g, w, extra):
        assert not torch.is_grad_enabled()
        assert not any(t.requires_grad for t in [*g.values(), *w.values()])
        return g

    run(client.fit(client.initial, client.loss, before_clip=rule, after_clip=rule))


def test_a_rule_cannot_change_the_weights_under_training():
    """FedProx's proximal term as a rule equals the term inside the loss."""
    client = make_client(smooth_net(), epochs=2)
    start = client.initial

    def loss(w, batch, start):
        return client.loss(w, batch) + 0.35 * (w - start).sq_norm()

    inside = run(client.fit(start, loss, start, stream=0))
    rule = run(
        client.fit(
            start,
            client.loss,
            start,
            before_clip=lambda g, w, start: g + 0.7 * (w - start),
            stream=0,
        )
    )
    assert close(inside.weights, rule.weights, 1e-12)


@pytest.mark.parametrize("clip", [0.0, 0.2])
def test_nets_of_separate_losses_are_trained_as_if_alone(clip):
    """Nets trained together for separate losses are trained as if alone."""
    net = smooth_net(batch_norm=True)
    client = make_client(net, momentum=0.5, clip=clip, epochs=2)
    starts = {"first": client.initial, "second": client.random_weights()}

    def both(w, batch, extra):
        return client.loss(w["first"], batch) + 2 * client.loss(w["second"], batch)

    together = run(client.fit(starts, both, stream=0))
    first = run(client.fit(starts["first"], client.loss, stream=0))
    second = run(client.fit(starts["second"], lambda w, batch, extra: 2 * client.loss(w, batch), stream=0))
    assert list(together.weights) == ["first", "second"]
    assert close(together.weights["first"], first.weights, 1e-12)
    assert close(together.weights["second"], second.weights, 1e-12)
    assert together.loss == pytest.approx(first.loss + second.loss)


def test_a_fit_of_one_part_leaves_out_the_rest():
    """Only the entries of `start` are trained; a frozen head comes as `extra`."""
    net = smooth_net()
    client = make_client(net)
    head = client.initial.select(net.names("last_layer", "head").__contains__)
    body = client.initial.select(net.names("last_layer", "features").__contains__)
    fitted = run(
        client.fit(body, lambda w, b, head: F.cross_entropy(net.head(head, net.features(w, b.x)), b.y), head)
    )
    assert list(fitted.weights) == list(body)
    assert not any(same_bits(fitted.weights[n], body[n]) for n in body)


def test_the_learning_rate_decays_with_the_rounds():
    net = smooth_net()
    late = make_client(net, n=5, round=3, lr=0.4, schedule=Exponential(decay=0.5))
    plain = make_client(net, n=5, round=3, lr=0.05)
    assert late.lr == 0.05
    assert same_bits(
        run(late.fit(late.initial, late.loss)).weights,
        run(plain.fit(plain.initial, plain.loss)).weights,
    )


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("steps", [0, 1, 2, 7])
def test_effective_steps(momentum, steps):
    """The weights with which a constant gradient enters, by the recursion v <- m v + g and by closed form."""
    v = total = 0.0
    for _ in range(steps):
        v = momentum * v + 1
        total += v
    found = Descent(SGD(), 0.1, momentum, 0, 0).effective_steps(steps)
    m = momentum
    closed = steps / (1 - m) - m * (1 - m**steps) / (1 - m) ** 2
    assert found == pytest.approx(total, abs=1e-12) == pytest.approx(closed, abs=1e-12)


def test_effective_steps_are_those_of_the_fit():
    """With one gradient all along, the weights move by lr times the effective steps times it."""
    w, loss = quadratic()
    client = make_client(smooth_net(), n=12, momentum=0.8, epochs=2, lr=0.1)
    fitted = run(client.fit(w, loss))
    assert fitted.steps == 6
    assert numbers(w)["a"] - numbers(fitted.weights)["a"] == pytest.approx(0.1 * 3 * fitted.effective_steps)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_memory_formats_agree(batch_norm):
    net = smooth_net(batch_norm)
    results = []
    for channels_last in (False, True):
        images = make_images(channels_last=channels_last)
        x, _ = images.batch(torch.arange(4))
        assert x.is_contiguous(memory_format=torch.channels_last) == channels_last
        client = make_client(net, images, epochs=3, momentum=0.5)
        results.append(run(client.fit(client.initial, client.loss)))
    assert close(results[0], results[1], 1e-9)
    assert all(t.is_contiguous() for t in results[1].weights.values())


def depthwise():
    """A net whose first kernels have one input channel each."""
    conv = nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Conv2d(2, 3, 2), nn.Flatten())
    return SplitNet(conv, nn.Sequential(), nn.Linear(27, CLASSES))


def test_fitted_weights_lie_in_memory_as_those_read_from_a_file():
    """A kernel of one input channel is contiguous in either format, and its strides choose the code."""
    client = make_client(Net(depthwise, dtype=torch.float64), make_images(channels_last=True))
    for t in run(client.fit(client.initial, client.loss)).weights.values():
        assert t.stride() == torch.empty(t.shape).stride()


def test_single_precision_is_single_precision():
    client = make_client(
        Net(smooth_split), make_images(dtype=torch.float32), precision="float32", momentum=0.5
    )
    fitted = run(client.fit(client.initial, client.loss))
    assert {t.dtype for t in fitted.weights.values()} == {torch.float32}


# ---- totals


def test_a_total_is_the_sum_over_the_training_data():
    net = smooth_net(batch_norm=True)
    images = make_images(700)
    client = make_client(net, images, n=600, first=50)

    def sums(w, batch, scale):
        member = F.one_hot(batch.y, 3).double()
        return {"features": scale * member.T @ net.eval.features(w, batch.x), "count": member.sum(0)}

    before = client.initial.clone()
    found = run(client.total(sums, client.initial, 2.0))
    x, y = images.batch(torch.arange(50, 650))
    z = net.eval.features(client.initial, x)
    assert close(found["features"], torch.stack([2 * z[y == c].sum(0) for c in range(3)]), 1e-10)
    assert torch.equal(found["count"].long(), client.class_counts)
    assert not found["features"].requires_grad
    assert same_bits(client.initial, before)


def test_totals_and_fits_share_no_noise():
    client = make_client(smooth_net())
    total = client.total(lambda w, batch, extra: uniform(batch.key, (4,)), client.initial)
    for stream in range(4):
        fit = client.fit(client.initial, client.loss, stream=stream)
        shared = {*step_keys(total.key, 9).tolist()} & {*step_keys(fit.key, 9).tolist()}
        assert not shared


def test_a_total_of_one_class():
    net = smooth_net(batch_norm=True)
    images = make_images(700)
    client = make_client(net, images, n=600, first=50)
    x, y = images.batch(torch.arange(50, 650))
    for c in range(3):
        found = run(
            client.total(
                lambda w, batch, extra: net.eval.features(w, batch.x).sum(0), client.initial, of_class=c
            )
        )
        assert close(found, net.eval.features(client.initial, x)[y == c].sum(0), 1e-10)


def test_fits_and_totals_of_a_method_in_turn():
    seen = []

    async def method(client):
        first = await client.fit(client.initial, client.loss)
        count = await client.total(lambda w, batch, extra: batch.y.new_ones(()) * len(batch.y), first.weights)
        second = await client.fit(first.weights, client.loss, epochs=2)
        return first, int(count), second

    client = make_client(smooth_net(), n=12)
    ((first, count, second),) = run_loop([method(client)], lambda k, fitted: seen.append((k, fitted)))
    assert count == 12
    assert (first.steps, second.steps) == (3, 6)
    assert [(k, type(f)) for k, f in seen] == [(0, Fitted), (0, Fitted)]  # totals are not observed
    assert seen[0][1] is first


def test_an_error_of_a_method_is_not_swallowed():
    async def method(client):
        await client.fit(client.initial, client.loss)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run_loop([method(make_client(smooth_net()))], lambda *_: None)


# ---- settings


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("batch_size", 0),
        ("lr", 0.0),
        ("lr", -1.0),
        ("lr", math.nan),
        ("lr", math.inf),
        ("optimiser", "Adam"),
        ("schedule", 0.9),
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("weight_decay", -1e-4),
        ("clip", -1.0),
        ("clip", math.nan),
        ("last_batch", "pad"),
        ("bn_single", "drop"),
        ("precision", "float16"),
    ],
)
def test_impossible_settings_are_refused_by_name(name, value):
    with refused(BadValue, f"training.{name}"):
        Training(**{name: value})
