"""One client's fit, carried out in the loop, against plain PyTorch and against sums done by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rayfl.nets import SplitNet
from rayfl.training import Fitted, Net, Params
from rayfl.training.loop import run_loop
from rayfl.training.noise import step_keys
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


def run(awaitable):
    return run_loop([only(awaitable)], lambda *_: None)[0]


def batches_of(client, **options):
    """The index batches that a fit of this client would see."""
    return client.fit(client.initial, client.loss, **options).batches


def plain_sgd(client, batches, clip=0.0, **optimiser):
    """Train the client's net as a module with torch.optim.SGD over the given batches."""
    module = smooth_split(client.net.has_batch_norm).double()
    module.load_state_dict(dict(client.initial), strict=False)
    module.train()
    sgd = torch.optim.SGD(module.parameters(), **optimiser)
    losses = []
    for indices in batches:
        x, y = client._examples.batch(indices)
        sgd.zero_grad()
        value = F.cross_entropy(module(x), y)
        value.backward()
        if clip:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        sgd.step()
        losses.append(value.item())
    return module.state_dict(), sum(losses) / len(losses)


@pytest.mark.parametrize(
    ("batch_norm", "settings"),
    [
        (True, {"batch_size": 12}),
        (False, {"batch_size": 100, "epochs": 3, "momentum": 0.9}),
        (True, {"n": 17, "epochs": 2, "weight_decay": 0.1}),
        (False, {"n": 16, "epochs": 3, "clip": 0.3}),
        (True, {"n": 16, "epochs": 3, "momentum": 0.5, "weight_decay": 0.01, "clip": 0.5, "lr": 0.3}),
    ],
)
def test_a_fit_is_plain_sgd(batch_norm, settings):
    client = make_client(smooth_net(batch_norm), **settings)
    of_torch = {k: v for k, v in settings.items() if k not in ("n", "batch_size", "epochs")}
    batches = batches_of(client, stream=0)
    fitted = run(client.fit(client.initial, client.loss, stream=0))
    expected, loss = plain_sgd(client, batches, **{"lr": 0.1, **of_torch})
    assert fitted.steps == len(batches)
    assert close(dict(fitted.weights), {n: expected[n] for n in fitted.weights}, 1e-12)
    assert abs(fitted.loss - loss) < 1e-12
    assert not fitted.weights.live
    assert fitted.weights.train_names == client.initial.train_names


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
def test_batch_sizes(n, last_batch, sizes):
    client = make_client(smooth_net(), n=n, last_batch=last_batch, epochs=3)
    batches = batches_of(client)
    assert [len(b) for b in batches] == sizes * 3
    for k in range(3):
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
    """On seed, client, round and stream only; and it is another one in each epoch."""
    net = smooth_net()
    known = order(make_client(net, id=1, round=2, seed=3), stream=4)
    both = order(make_client(net, id=1, round=2, seed=3, epochs=2), stream=4)
    assert known == both[:3] != both[3:]
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


@pytest.mark.parametrize("where", ["loss", "before_clip", "after_clip", "total"])
def test_facts_of_one_client_cannot_be_read_for_many(where):
    client = make_client(smooth_net(), n=4)
    facts, told = ["id", "initial", "samples", "val_samples", "class_counts", "lr", "round"], []

    def nosy(*args):
        for fact in facts:
            with pytest.raises(RuntimeError, match=rf"client\.{fact} differs between clients.*extra"):
                getattr(client, fact)
            told.append(fact)
        return args[0] if where.endswith("clip") else client.loss(*args[:2])

    if where == "total":
        run(client.total(nosy, client.initial))
    else:
        loss = nosy if where == "loss" else client.loss
        rules = {} if where == "loss" else {where: nosy}
        run(client.fit(client.initial, loss, **rules))
    assert told == facts
    assert all(hasattr(client, fact) for fact in facts)  # outside they can be read again


def test_facts():
    client = make_client(smooth_net(), n=7, id=3, round=2, lr=0.5, schedule=Exponential(decay=0.1))
    assert (client.id, client.samples, client.round, client.classes) == (3, 7, 2, 3)
    assert client.class_counts.sum() == 7
    assert client.lr == pytest.approx(0.005)
    plain = make_client(client.net, n=7, id=3, round=2, lr=client.lr)
    fits = [run(each.fit(each.initial, each.loss)).weights for each in (client, plain)]
    assert same_bits(*fits)


def test_random_weights_belong_to_the_client_alone():
    """Nobody's are the initial ones, and they are the same in every round."""
    net = smooth_net()
    drawn = [make_client(net, id=i).random_weights()["head.weight"] for i in range(4)]
    found = [*drawn, make_client(net).initial["head.weight"]]
    assert len({w.numpy().tobytes() for w in found}) == 5
    assert same_bits(make_client(net, id=2, round=3).random_weights()["head.weight"], drawn[2])


def test_noise_belongs_to_client_round_stream_and_step():
    """And that of totals is another one."""
    net, seen = smooth_net(), []

    def loss(w, batch, extra):
        seen.append(batch.key.item())
        return client.loss(w, batch)

    def key_of(stream=0, **facts):
        other = make_client(net, **facts)
        return other.fit(other.initial, other.loss, stream=stream).key

    client = make_client(net)
    fit = client.fit(client.initial, loss, stream=0)
    run(fit)
    assert seen == step_keys(fit.key, 3).tolist()
    assert key_of() == fit.key
    others = [key_of(1), key_of(id=1), key_of(round=1), key_of(seed=6)]
    total = client.total(client.loss, client.initial).key
    assert len({fit.key, total, *others}) == 6


# ---- the update


def quadratic():
    """A 'net' of three numbers whose loss is by hand: gradient of a is 3, of b is 4; c is not used."""
    values = {"a": 1.0, "b": 2.0, "c": 5.0, "buffer": 7.0}
    w = Params({n: torch.tensor([v], dtype=torch.float64) for n, v in values.items()}, frozenset("abc"))
    return w, lambda w, batch, extra: (3 * w["a"] + 4 * w["b"]).sum()


def numbers(w):
    return {n: t.item() for n, t in w.items()}


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


def test_nets_of_separate_losses_are_trained_as_if_alone():
    net = smooth_net(batch_norm=True)
    client = make_client(net, momentum=0.5, clip=0.2, epochs=2)
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


def test_effective_steps_are_those_of_the_fit():
    """With one gradient all along, the weights move by lr times the effective steps times it."""
    w, loss = quadratic()
    client = make_client(smooth_net(), n=12, momentum=0.8, epochs=2, lr=0.1)
    fitted = run(client.fit(w, loss))
    assert fitted.steps == 6
    assert numbers(w)["a"] - numbers(fitted.weights)["a"] == pytest.approx(0.1 * 3 * fitted.effective_steps)


def test_memory_formats_agree():
    net = smooth_net(batch_norm=True)
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


# ---- totals


def test_a_total_is_the_sum_over_the_training_data():
    net = smooth_net(batch_norm=True)
    images = make_images(400)
    client = make_client(net, images, n=300, first=50)

    def sums(w, batch, scale):
        member = F.one_hot(batch.y, 3).double()
        return {"features": scale * member.T @ net.eval.features(w, batch.x), "count": member.sum(0)}

    before = client.initial.clone()
    found = run(client.total(sums, client.initial, 2.0))
    x, y = images.batch(torch.arange(50, 350))
    z = net.eval.features(client.initial, x)
    assert close(found["features"], torch.stack([2 * z[y == c].sum(0) for c in range(3)]), 1e-10)
    assert torch.equal(found["count"].long(), client.class_counts)
    assert not found["features"].requires_grad
    assert same_bits(client.initial, before)
    for c in range(3):
        total = client.total(lambda w, batch, _: net.eval.features(w, batch.x).sum(0), before, of_class=c)
        assert close(run(total), z[y == c].sum(0), 1e-10)


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
