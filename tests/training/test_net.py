from functools import partial

import pytest
import torch
from torch import nn

from rayfl.errors import BadCode
from rayfl.nets import SplitNet, build
from rayfl.training import Net, Params
from tests.support.nets import CLASSES, SHAPE, make_client, make_images, same_bits, smooth_net, smooth_split
from tests.support.refusals import refused

X = torch.randn(4, *SHAPE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def live(w):
    return Params({n: t.clone() for n, t in w.items()}, w.train_names, live=True)


@pytest.mark.parametrize("cut", ["last_layer", "fc_stack"])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_features_and_head_make_the_whole(cut, batch_norm):
    net = smooth_net(batch_norm)
    w = net.initial(3)
    whole = net(live(w), X)
    assert whole.shape == (4, CLASSES)
    assert torch.equal(net.head(live(w), net.features(live(w), X, cut), cut), whole)
    assert torch.equal(net.eval.head(w, net.eval.features(w, X, cut), cut), net.eval(w, X))


@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_net_computes_what_its_module_computes(batch_norm):
    net = smooth_net(batch_norm)
    w = net.initial(3)
    module = smooth_split(batch_norm).double()
    module.load_state_dict(dict(w), strict=False)
    assert torch.equal(net.eval(w, X), module.eval()(X))
    w = live(w)
    assert torch.equal(net(w, X), module.train()(X))
    assert all(torch.equal(t, w[n]) for n, t in module.state_dict().items())


@pytest.mark.parametrize("cut", ["last_layer", "fc_stack"])
def test_names_partition_the_entries(cut):
    net = smooth_net(batch_norm=True)
    features, head = net.names(cut, "features"), net.names(cut, "head")
    assert not features & head
    assert features | head == set(net.initial(0)) == set(net.modules_of)
    assert {"head.weight", "head.bias"} <= head
    assert ("fc.1.running_mean" in head) == (cut == "fc_stack")
    assert "conv.0.weight" in features


def test_modules_of_names_the_layer_of_every_entry():
    net = smooth_net(batch_norm=True)
    assert isinstance(net.modules_of["conv.1.running_mean"], torch.nn.BatchNorm2d)
    assert net.has_batch_norm
    assert not smooth_net().has_batch_norm
    assert net.train_names == {n for n in net.modules_of if "running" not in n}
    assert all(t.is_floating_point() for t in net.initial(0).values())


def test_the_eval_twin_leaves_statistics_alone():
    net = smooth_net(batch_norm=True)
    w = live(net.initial(0))
    before = w.clone()
    net.eval(w, X)
    net.eval.features(w, X)
    assert same_bits(w, before)
    net(w, X)
    assert not same_bits(w, before)
    assert net.eval.eval is net.eval


def test_train_mode_on_weights_not_trained_is_refused():
    """A call in train mode on weights that are not trained is refused."""
    net = smooth_net(batch_norm=True)
    w = net.initial(0)
    for call in (lambda: net(w, X), lambda: net.features(w, X)):
        with pytest.raises(RuntimeError, match=r"use net\.eval"):
            call()
    smooth_net()(w.select(lambda n: not n.startswith(("conv.1", "fc.1"))), X)  # no statistics, no danger


def test_a_frozen_head_without_batch_norm_may_be_used_in_training():
    """Only a call of parts that have BatchNorm can change statistics."""
    net = smooth_net(batch_norm=True)
    w = net.initial(0)
    z = net.eval.features(w, X)
    assert torch.equal(net.head(w, z), net.eval.head(w, z))
    frozen = w.select(net.names("last_layer", "head").__contains__)
    trained = live(w)
    assert torch.equal(net.head(frozen, net.features(trained, X)), net(live(w), X))
    with pytest.raises(RuntimeError, match=r"use net\.eval"):  # the fc stack has some
        net.head(w, net.eval.features(w, X, "fc_stack"), "fc_stack")


@pytest.mark.parametrize("net", ["Sharpened", "SharpenedSplit"])
def test_parts_that_are_not_the_whole_in_training_are_refused_there(net):
    net = Net(partial(build, f"tests.support.modules.{net}", (4,), 3))
    w, x = net.initial(0), torch.ones(2, 4)
    with refused(BadCode, "net"):
        net.features(w, x)
    with refused(BadCode, "net"):
        net.head(w, net.eval.features(w, x))
    assert torch.equal(net.eval.head(w, net.eval.features(w, x)), net.eval(w, x))


def test_calls_with_other_weights_in_between_change_nothing():
    """Weights are loaded into the module once: parts, twins and other weights must not mix."""
    net = smooth_net(batch_norm=True)
    first, second = net.initial(1), net.initial(2)
    expected = {k: smooth_net(batch_norm=True).eval(w, X) for k, w in enumerate((first, second))}
    assert torch.equal(net.eval(first, X), expected[0])
    z = net.eval.features(second, X, "fc_stack")
    assert not torch.equal(net.eval.head(first, z, "fc_stack"), expected[1])
    assert torch.equal(net.eval.head(second, z, "fc_stack"), expected[1])
    assert torch.equal(net.eval(first, X), expected[0])
    with pytest.raises(KeyError, match=r"head\.bias"):
        net.eval(second.select(lambda n: n != "head.bias"), X)
    assert torch.equal(net.eval(first, X), expected[0])
    assert torch.equal(net.eval(second, X), expected[1])


def test_weights_that_are_changed_in_place_count():
    net = smooth_net()
    w = net.initial(1)
    before = net(w, X)
    with torch.no_grad():
        w["head.bias"].add_(1)
    assert torch.allclose(net(w, X), before + 1)


def test_initial_depends_on_seed_and_counters_only():
    torch.manual_seed(1)
    first = smooth_net().initial(7, 2)
    torch.manual_seed(2)
    assert same_bits(smooth_net().initial(7, 2), first)
    for other in (smooth_net().initial(8, 2), smooth_net().initial(7, 3), smooth_net().initial(7)):
        assert not same_bits(other, first)


def test_the_global_generator_is_left_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    net = smooth_net(batch_norm=True)
    net.initial(3)
    client = make_client(net, make_images())
    client.random_weights()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("named", [False, True])
def test_the_row_of_padding_is_not_trained_in_a_stack(named):
    """As in a loop; the gradient of what comes out of torch.func.vmap has one for it."""

    class Embedded(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(4, 2, padding_idx=0)

        def forward(self, x):
            return (self.table(input=x) if named else self.table(x)).flatten(1)

    net = Net(lambda: SplitNet(Embedded(), nn.Sequential(), nn.Linear(6, CLASSES)), dtype=torch.float64)
    texts, w = torch.tensor([[0, 1, 0], [2, 0, 3]]), net.initial(0)

    def loss(tensors, x):
        return net(Params(tensors, w.train_names, live=True), x).pow(2).sum()

    alone = torch.func.grad(loss)(w.tensors, texts)["conv.table.weight"]
    both = Params.stack([w, w]).map(torch.Tensor.requires_grad_).tensors
    losses = torch.func.vmap(loss)(both, torch.stack([texts, texts]))
    stacked = torch.autograd.grad(losses.sum(), both["conv.table.weight"])[0]
    net.release()
    assert not alone[0].any()
    assert alone[1:].all()
    torch.testing.assert_close(stacked, torch.stack([alone, alone]), rtol=0, atol=1e-12)
