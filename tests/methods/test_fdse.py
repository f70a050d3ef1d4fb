"""FDSE: consensus, attention and regulariser worked out by hand, its limits, and what it records."""

import json
import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rayfl import Inline, Training
from rayfl.callbacks.loggers import scalars
from rayfl.data import Synthetic
from rayfl.errors import Conflict
from rayfl.evaluation import Protocol
from rayfl.methods import FDSE, FedAvg
from rayfl.methods.fdse import consensus
from rayfl.methods.fdse.consensus import counted_mean, least_norm, minimum_norm_step, mix_by_similarity
from rayfl.methods.fdse.consistency import Consistency, ratio_of_gradients
from rayfl.methods.fdse.method import trainable_units
from rayfl.nets import DSECNN, DSEViT, FDSEAlexNet, LoRA, build
from rayfl.training import Batch, Net, Params
from tests.methods.numbers import DATA, SETTINGS, TINY
from tests.support.by_hand import assert_same, federate, start
from tests.support.federations import small
from tests.support.nets import make_context
from tests.support.refusals import refused

NET = "tests.support.by_hand.dse"


def params(**entries):
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in entries.items()}
    return Params(tensors, frozenset(tensors))


# ---- consensus (eq. 8)

BETWEEN = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2**-0.5, 2**-0.5]], dtype=torch.float64)


def test_orthogonal_updates_by_hand():
    """Updates (3, 0) and (0, 4): unit vectors, u = (1/2, 1/2), mean length 7/2, step 7/4 in both."""
    old = params(a=[1.0], b=[[2.0]])
    found = minimum_norm_step(old, [params(a=[4.0], b=[[2.0]]), params(a=[1.0], b=[[6.0]])], ["a", "b"])
    assert found.norms.tolist() == [3, 4]
    assert found.shares.tolist() == pytest.approx([1 / 2, 1 / 2])
    assert found.tensors["a"].tolist() == pytest.approx([1 + 7 / 4])
    assert found.tensors["b"].tolist() == [pytest.approx([2 + 7 / 4])]


def test_units_are_agreed_on_by_themselves():
    """As one vector updates (3, 4) and (3, 0) make an angle; tensor by tensor b has one update only."""
    old, new = params(a=[0.0], b=[0.0]), [params(a=[3.0], b=[4.0]), params(a=[3.0], b=[0.0])]
    whole = minimum_norm_step(old, new, ["a", "b"])
    assert whole.norms.tolist() == [5, 3]
    assert [whole.tensors[n].item() for n in "ab"] == pytest.approx([4 * (0.6 + 1) / 2, 4 * 0.8 / 2])
    single = minimum_norm_step(old, new, ["b"])
    assert single.shares.tolist() == [1, 0]  # the second has no direction
    assert single.tensors["b"].item() == pytest.approx((4 + 0) / 2)  # its norm 0 counts in the mean length


def test_an_update_between_the_others_has_no_part():
    """d1 = (1, 0), d2 = (0, 1), d3 between them: the shortest combination is (1/2, 1/2), without d3."""
    shares = least_norm(BETWEEN @ BETWEEN.T, torch.ones(3, dtype=torch.bool))
    torch.testing.assert_close(shares, torch.tensor([0.5, 0.5, 0.0]).double(), rtol=0, atol=1e-6)


def test_exactly_opposite_updates_stop_the_unit():
    old = params(a=[1.0, 2.0])
    found = minimum_norm_step(old, [params(a=[4.0, 6.0]), params(a=[0.4, 1.2])], ["a"])
    assert found.norms.tolist() == pytest.approx([5, 1])
    assert found.shares.tolist() == pytest.approx([1 / 2, 1 / 2])
    assert found.tensors["a"].tolist() == pytest.approx([1, 2], abs=1e-9)


def test_nobody_has_moved():
    old = params(a=[1.0, 2.0])
    found = minimum_norm_step(old, [old, old, old], ["a"])
    assert found.tensors["a"].tolist() == [1, 2]
    assert found.shares.tolist() == found.norms.tolist() == [0, 0, 0]


def test_an_update_below_the_least_norm_has_no_direction():
    old = params(a=[0.0, 0.0])
    found = minimum_norm_step(
        old, [params(a=[1e-13, 0.0]), params(a=[0.0, 1.0]), params(a=[1.0, 0.0])], ["a"]
    )
    assert found.shares.tolist() == pytest.approx([0, 1 / 2, 1 / 2])
    assert found.shares[0] == 0
    assert found.tensors["a"].tolist() == pytest.approx([1 / 3, 1 / 3])


@settings(max_examples=10)
@given(st.integers(2, 7), st.integers(1, 5), st.integers(0, 10**6), st.integers(0, 2))
def test_no_client_is_opposed(clients, size, seed, still):
    """<sum u_j d_j, d_k> >= ||sum u_j d_j||^2 for all k: the condition of the minimum."""
    rng = torch.Generator().manual_seed(seed)
    old = Params({"a": torch.zeros(size, dtype=torch.float64)}, frozenset("a"))
    updates = torch.randn(clients, size, generator=rng, dtype=torch.float64)
    updates[:still] = 0
    found = minimum_norm_step(old, [Params({"a": row}, frozenset("a")) for row in updates], ["a"])
    norms = updates.norm(dim=1)
    units = updates / norms.clamp(min=1e-300)[:, None]
    v = found.shares @ units
    assert (found.shares >= 0).all()
    assert found.shares.sum().item() == pytest.approx(float(still < clients))
    assert (units @ v >= v @ v - 1e-6)[norms > 0].all()
    torch.testing.assert_close(found.tensors["a"], norms.mean() * v, rtol=1e-9, atol=1e-9)


def test_pieces_do_not_matter(monkeypatch):
    rng = torch.Generator().manual_seed(0)
    old, *new = (
        Params({n: torch.randn(7, 3, generator=rng, dtype=torch.float64) for n in "ab"}, frozenset("ab"))
        for _ in range(4)
    )
    whole = minimum_norm_step(old, new, ["a", "b"])
    monkeypatch.setattr(consensus, "CHUNK", 18)  # pieces of four numbers
    pieces = minimum_norm_step(old, new, ["a", "b"])
    for name in "ab":
        torch.testing.assert_close(pieces.tensors[name], whole.tensors[name], rtol=1e-10, atol=1e-10)
        assert pieces.tensors[name].shape == (7, 3)


def test_what_no_solver_solves_is_an_error(monkeypatch):
    monkeypatch.setattr(consensus, "_SOLVERS", {"CLARABEL": {"max_iter": 1}})
    with pytest.raises(RuntimeError, match=r"no combination of the clients' updates was found.*CLARABEL"):
        least_norm(BETWEEN @ BETWEEN.T, torch.ones(3, dtype=torch.bool))


def test_means_of_statistics():
    tensors = [torch.tensor([1.0, 2.0]), torch.tensor([4.0, 8.0])]
    assert counted_mean(tensors, [1, 1]).tolist() == [2.5, 5.0]
    assert counted_mean(tensors, [2, 1]).tolist() == [2.0, 4.0]


def test_shares_do_not_depend_on_what_was_solved_before():
    rng = torch.Generator().manual_seed(0)
    first, other = (
        torch.nn.functional.normalize(torch.randn(5, 40, generator=rng, dtype=torch.float64))
        for _ in range(2)
    )
    moved = torch.ones(5, dtype=torch.bool)
    alone = least_norm(first @ first.T, moved)
    least_norm(other @ other.T, moved)
    assert torch.equal(least_norm(first @ first.T, moved), alone)


# ---- attention (eq. 9)


def test_attention_by_hand():
    """Rows (2, 0), (0, 1) and (5, 0): q1 = q3, so with tau = 1 weights e : 1 : e and 1 : e : 1."""
    rows = [params(a=[2.0], b=[0.0]), params(a=[0.0], b=[1.0]), params(a=[5.0], b=[0.0])]
    mixed, weights = mix_by_similarity(rows, tau=1.0)
    e = math.e
    torch.testing.assert_close(weights[0], torch.tensor([e, 1, e]).double() / (2 * e + 1))
    torch.testing.assert_close(weights[1], torch.tensor([1, e, 1]).double() / (2 + e))
    assert mixed[0]["a"].item() == pytest.approx(7 * e / (2 * e + 1))
    assert mixed[1]["b"].item() == pytest.approx(e / (2 + e))
    assert mixed[2]["a"].item() == mixed[0]["a"].item()


def test_zeros_are_equally_similar_to_all():
    """As are the biases of dse_bn before the first step."""
    mixed, weights = mix_by_similarity([params(a=[0.0]), params(a=[0.0])], 0.01)
    assert weights.tolist() == [[0.5, 0.5]] * 2
    assert [m["a"].item() for m in mixed] == [0, 0]


# ---- the regulariser (eq. 4 to 7)

TARGETS = [torch.tensor([0.5, 0.0]).double(), torch.tensor([1.0, 2.0]).double()]
FIRST, SECOND = (
    [[1.0, 0.0], [3.0, 2.0]],
    [[0.0, 4.0], [0.0, 8.0]],
)  # means 2, 1 and 0, 6; variances 1, 1 and 0, 4


def estimates_of(made):
    """Return the first estimates, which ``loss`` renews in place."""
    return Params({n: t.clone() for n, t in made.initial_estimates(TARGETS).items()}, frozenset())


def test_regulariser_by_hand():
    """gamma = 3/4, from mean (1/2, 0) and variance (1, 2).

    After the first batch: mean (7/8, 1/4), variance (1, 7/4): L = (3/8^2 + 1/4^2) / 2 + (1/4 / 2)^2.
    After the second: mean (21/32, 27/16), variance (3/4, 37/16).
    """
    made = Consistency(1, beta=0.0, gamma=0.75, reg="paper", ema_init="received")
    seen = estimates_of(made)
    found = [made.loss([torch.tensor(x).double()], seen, TARGETS).item() for x in (FIRST, SECOND)]
    first = ((3 / 8) ** 2 + (1 / 4) ** 2) / 2 + (1 / 8) ** 2
    second = ((5 / 32) ** 2 + (27 / 16) ** 2) / 2 + ((3 / 4 + 37 / 16 - 3) / 2) ** 2
    assert found == pytest.approx([first, second])
    assert seen["0"].tolist() == [21 / 32, 27 / 16]
    assert seen["1"].tolist() == [3 / 4, 37 / 16]


def test_equal_channels_have_no_infinite_distance_in_the_code():
    """Their variance 0 counts as 1e-8; in the ratio it is that too."""
    made = Consistency(1, beta=0.0, gamma=0.75, reg="code", ema_init="received")
    x = torch.tensor([[1.0, 1.0], [3.0, 3.0]]).double()
    distance = ((0.25 - 4) + (0 - 4)) / 2 / 2e-8
    ratios = math.log(1e-8 / (1 + 1e-8)) + 1e8 + math.log(1e-8 / (2 + 1e-8)) + 2e8
    assert made.loss([x], estimates_of(made), TARGETS).item() == pytest.approx(
        distance + ratios / 4, rel=1e-12
    )


def test_ratio_of_gradients():
    """Of x . w and 3 y . w: 3 ||y|| / ||x||. Buffers stay as they are."""
    w = Params({"w": torch.zeros(2).double(), "b": torch.zeros(1).double()}, frozenset("w"))

    def losses(nets, batch, extra):
        nets["net"]["b"].add_(1)
        return nets["net"]["w"] @ batch.x, 3 * (nets["net"]["w"] @ batch.y)

    batch = Batch(torch.tensor([3.0, 4.0]).double(), torch.tensor([0.0, 2.0]).double(), torch.tensor(0))
    assert ratio_of_gradients(losses)({"net": w}, batch, None).item() == pytest.approx(6 / 5)
    assert w["b"].item() == 0


# ---- limits


def test_with_plain_means_it_is_fedavg():
    """But for the statistics of dse_bn, which stay with the clients and do not enter training."""
    method = FDSE(lam=0, consensus=False, attention="mean")
    run, other = (federate(m, DATA, NET, 3, averaging="uniform", **SETTINGS) for m in (method, FedAvg()))
    found = {**run.server.state["weights"], **run.server.state["dse"]}
    expected = dict(other.server.state["weights"])
    left = {name for name in expected if ".dse_bn.running" in name}
    assert found.keys() == expected.keys() - left
    assert_same(found, {name: expected[name] for name in found}, 1e-13)


def test_measuring_changes_nothing():
    never, every_other = (federate(FDSE(share_every=k), DATA, NET, 3, **SETTINGS) for k in (0, 2))
    values = [{k: v for k, v in run.values().items() if "share" not in k} for run in (never, every_other)]
    assert_same(*values)
    measured = [
        ["regulariser/share" in server["figures"] for server in run.servers] for run in (never, every_other)
    ]
    assert measured == [[False] * 3, [False, True, False]]


# ---- rounds


def uploads_of_a_round(run, cohort):
    """Run a round; return what reaches the server in it."""
    seen, aggregate = {}, run.server.method.aggregate

    def spy(server, up, cohort):
        seen.update(up)
        return aggregate(server, up, cohort)

    object.__setattr__(run.server.method, "aggregate", spy)
    run.round(cohort)
    return seen


def vector(w, names):
    """Return entries of a net as one vector."""
    return torch.cat([w[name].reshape(-1) for name in names])


DFE = ["dfe_bias", "dfe_conv.weight", "dfe_conv.bias", "dfe_bn.weight", "dfe_bn.bias"]
DSE = ["dse_bn.weight", "dse_bn.bias", "dse_conv.weight"]


@pytest.mark.parametrize("unit", ["block", "tensor"])
def test_units_of_the_consensus(unit):
    """Of two clients u is always (1/2, 1/2), so that the step is the mean length times the mean direction."""
    run = federate(FDSE(unit=unit), DATA, NET, [[0, 1]], **SETTINGS)
    old = run.server.state["weights"]
    sent = uploads_of_a_round(run, [0, 1])["weights"].values()
    figures = run.server.method.server_metrics(run.server.context, run.server.state)
    new = run.server.state["weights"]
    tensors = {f"{block}.{part}" for block in ("conv.0", "fc.0") for part in DFE}
    units = tensors | {"head.weight", "head.bias"} if unit == "tensor" else {"conv.0", "fc.0", "head"}
    assert {name for name in figures if name.startswith("norm/")} == {f"norm/{name}" for name in units}
    name, block = "conv.0.dfe_conv.weight", [f"conv.0.{part}" for part in DFE]
    names = [name] if unit == "tensor" else block
    lengths = [(vector(w, names) - vector(old, names)).norm().item() for w in sent]
    assert figures["norm/" + (name if unit == "tensor" else "conv.0")] == pytest.approx(lengths)
    directions = [(w[name] - old[name]) / length for w, length in zip(sent, lengths)]
    step = sum(lengths) / 2 * sum(directions) / 2
    torch.testing.assert_close(new[name], old[name] + step, rtol=0, atol=1e-7)


@pytest.mark.parametrize("attn_unit", ["block", "tensor"])
def test_units_of_the_attention(attn_unit):
    """Of two clients a weight on oneself is 1 / (1 + exp((cosine - 1) / tau))."""
    tau = 0.01
    run = federate(FDSE(tau=tau, attn_unit=attn_unit), DATA, NET, [[0, 1]], **SETTINGS)
    first, second = uploads_of_a_round(run, [0, 1])["dse"].values()
    figures = run.server.method.server_metrics(run.server.context, run.server.state)
    units = {block: [f"{block}.{part}" for part in DSE] for block in ("conv.0", "fc.0")}
    if attn_unit == "tensor":
        units = {name: [name] for names in units.values() for name in names}
    assert {name for name in figures if name.startswith("self/")} == {f"self/{name}" for name in units}
    for unit, names in units.items():
        cosine = torch.cosine_similarity(vector(first, names), vector(second, names), dim=0).item()
        own = 1 / (1 + math.exp((cosine - 1) / tau))
        assert figures[f"self/{unit}"] == pytest.approx([own, own])
        for name in names:
            mixture = own * first[name] + (1 - own) * second[name]
            torch.testing.assert_close(run.server.state["dse"][0][name], mixture, rtol=0, atol=1e-12)


def test_units_and_numbers_of_fdse_alexnet():
    """8 units by block, 37 by tensor; traffic and state as in the paper's model."""
    net = Net(lambda: build(FDSEAlexNet(), (3, 64, 64), 10))
    context = make_context(net, FDSE())
    w, blocks = net.initial(0), context.prepared.names
    shared, own = context.shared_part(w), context.personal_part(w)
    assert len(trainable_units(shared, "block", blocks)) == 8
    assert len(trainable_units(shared, "tensor", blocks)) == 37
    assert len(trainable_units(own, "tensor", blocks)) == 7 * 3
    assert shared.trainable().numel() == 6_498_602
    assert shared.numel() + own.trainable().numel() == 6_508_010 + 6_400
    assert own.numel() - own.trainable().numel() == 3_200


def test_layers_outside_blocks_are_units_of_their_own():
    net = Net(lambda: build(DSEViT(patch=8, depth=1), (3, 16, 16), 10))
    context = make_context(net, FDSE())
    shared = context.shared_part(net.initial(0))
    units = trainable_units(shared, "block", context.prepared.names)
    assert units["head"] == ["head.weight", "head.bias"]
    assert units["conv.tokens"] == ["conv.tokens.first", "conv.tokens.positions"]
    assert "conv.block1.forth.last" in units
    assert sum(map(len, units.values())) == len(shared.train_names)


@pytest.mark.parametrize("net", [TINY, LoRA(of=DSECNN())], ids=["none", "frozen"])
def test_a_net_that_trains_no_dse_blocks_is_refused(net):
    with refused(Conflict, "net"):
        start(FDSE(), DATA, net)


def test_figures_are_recorded(tmp_path):
    data = Synthetic(train=80, test=40, shape=(1, 16, 16), classes=4)
    training = Training(lr=0.1, batch_size=8)
    settings = {"method": FDSE(), "net": NET, "data": data, "clients": 3, "participation": 1.0, "rounds": 2}
    result = small(tmp_path, training=training, engine=Inline(), **settings).run()
    first, second = (json.loads(x) for x in (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert "regulariser/share" not in first["figures"]
    figures = second["figures"]
    assert {len(values) for values in figures.values()} == {3}
    assert sum(figures["u/conv.0"]) == pytest.approx(1)
    assert all(share > 0 for share in figures["regulariser/share"])
    assert {"norm/head", "self/fc.0.dse_bn.bias"} <= figures.keys()
    sent = scalars(second, result.history.population, Protocol())
    assert sent["figures/u/conv.0/mean"] == pytest.approx(1 / 3)
    assert sent["figures/norm/head/max"] == max(figures["norm/head"])


def test_means_do_not_gather():
    """Without consensus and attention nothing needs the single client's upload."""
    method = FDSE(consensus=False, attention="mean", share_every=0)
    run = federate(method, DATA, NET, 2)
    assert {type(r).__name__ for key, r in run.server.uploads.items() if key != "share"} == {"Mean"}
    assert set(run.results[1].up) == {"weights", "dse"}
    assert run.results[1].down["dse"] == run.results[1].up["dse"]


def test_a_solver_that_draws_when_it_is_imported(tmp_path, monkeypatch):
    """So does cvxpy beside solvers for GPUs: it is no draw of the method's."""
    (tmp_path / "cvxpy.py").write_text("import numpy\ndrawn = numpy.random.rand()\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cvxpy", raising=False)
    before = np.random.get_state()[2]  # noqa: NPY002
    assert 0 <= consensus._import_cvxpy().drawn < 1
    assert np.random.get_state()[2] == before  # noqa: NPY002
