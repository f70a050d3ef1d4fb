from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rayfl.data.task import TASKS
from rayfl.errors import BadCode
from rayfl.evaluation.measures import measures
from rayfl.evaluation.score import (
    BATCH,
    CALL,
    answer_at_once,
    answer_together,
    score_clients,
    score_rows,
)
from rayfl.testing.by_hand import tiny
from rayfl.training import Net
from rayfl.training.client import NetCall
from rayfl.training.loop import run_loop
from tests.support.datasets import of_classes
from tests.support.nets import make_client, make_images, smooth_net
from tests.support.refusals import refused


def test_scores_are_those_of_all_samples_at_once():
    net, images = smooth_net(batch_norm=True), make_images(BATCH + 300)
    w, other = net.initial(0), net.initial(1)
    before = w.clone()
    indices = torch.arange(7, BATCH + 290)  # two parts
    seen = []

    async def predict(x):
        assert not torch.is_grad_enabled()
        seen.append(len(x))
        return {"personal": await NetCall(net.eval, None, w, x), "distances": net.eval(other, x)}

    for shared in ((), {id(w)}):
        seen.clear()
        found = score_clients({3: predict}, {3: indices}, images, shared, frozenset({"distances"}))[3]
        assert max(seen) <= BATCH
        assert sum(seen) == len(indices)
        x, y = images.batch(indices)
        for view, weights in (("personal", w), ("distances", other)):
            logits = net.eval(weights, x)
            assert found[view].score == (logits.argmax(1) == y).sum().item()
        assert found["personal"].loss == pytest.approx(F.cross_entropy(net.eval(w, x), y).item(), abs=1e-12)
        assert found["distances"].loss is None
        assert type(found["personal"].score) is int
    assert all(torch.equal(w[n], before[n]) for n in w)
    assert score_clients({}, {}, images) == {}


class Watched:
    """A net that notes the weights and sizes of its calls: scores are the inputs, times a number."""

    def __init__(self):
        self.calls = []

    def __call__(self, w, x):
        self.calls.append(("scores", w["factor"], len(x)))
        return w["factor"] * x

    def features(self, w, x, cut):
        self.calls.append((cut, w["factor"], len(x)))
        return 10 * w["factor"] * x


def test_calls_with_shared_weights_are_made_together_in_one_size():
    """Five clients, of whom the third waits for features first, and the last for nothing."""
    net, shared, own = Watched(), {"factor": 1.0}, [{"factor": 2.0 + i} for i in range(5)]
    sizes = [100, 200, 300, 4, 5]
    inputs = [torch.full((n, 2), float(i)) for i, n in enumerate(sizes)]

    async def scores(i):
        x = inputs[i]
        if i == 4:
            return {"own": x}
        if i == 2:
            x = await NetCall(net, "last_layer", shared, x)
        return {"shared": await NetCall(net, None, shared, x), "own": await NetCall(net, None, own[i], x)}

    found = answer_together([scores(i) for i in range(5)], range(5), {id(shared)})
    for i, views in enumerate(found[:4]):
        x = inputs[i] * (10 if i == 2 else 1)
        assert torch.equal(views["shared"], x)
        assert torch.equal(views["own"], own[i]["factor"] * x)
    assert torch.equal(found[4]["own"], inputs[4])
    of_shared = [(kind, n) for kind, factor, n in net.calls if factor == 1.0]
    assert {n for _, n in of_shared} == {CALL}
    assert [kind for kind, _ in of_shared].count("last_layer") == 3  # 300 samples
    assert [kind for kind, _ in of_shared].count("scores") == 3 + 3  # 304 and, later, 300 samples
    assert [n for _, factor, n in net.calls if factor > 1] == [100, 200, 4, 300]


def test_the_bits_of_scores_do_not_depend_on_who_is_scored_with_whom():
    """Of features that are no multiple of 16 bytes wide, bits depend on a row's place in memory."""
    net, images = Net(lambda: tiny((2, 6, 6), 10)), make_images(900, dtype=torch.float32)
    w = net.initial(0)
    ends = np.cumsum([0, *np.resize([1, 3, 20, 7, 60, 2], 58)])
    samples = {i: torch.arange(a, b) for i, (a, b) in enumerate(pairwise(ends[ends <= 900].tolist()))}

    async def predict(x):
        return {"v": await NetCall(net.eval, None, w, x)}

    def scored(ids):
        return score_clients(dict.fromkeys(ids, predict), {i: samples[i] for i in ids}, images, {id(w)})

    whole, parts = scored([*samples]), {}
    for k in range(3):
        parts |= scored([*reversed([*samples][k::3])])
    assert parts == whole


def test_clients_of_one_remainder_fill_calls_as_others_do():
    """As one of 16 workers has them."""
    net, shared, ids = Watched(), {"factor": 1.0}, range(0, 2000, 16)

    async def scores(x):
        return {"v": await NetCall(net, None, shared, x)}

    answer_together([scores(torch.zeros(3, 2)) for _ in ids], ids, {id(shared)})
    assert len(net.calls) <= 1.3 * len(ids) * 3 / CALL + 1


def test_what_is_not_awaited_as_it_must_be_is_refused():
    with refused(BadCode, "scores"):
        answer_at_once({"personal": torch.zeros(1)})
    net = smooth_net()
    client = make_client(net)

    async def fits(x):
        return {"v": await client.fit(client.initial, client.loss)}

    async def evaluates():
        return await client.eval(client.initial, torch.zeros(1))

    with refused(BadCode, "scores"):
        answer_at_once(fits(None))
    with refused(BadCode, "local_update"):
        run_loop([evaluates()], lambda *_: None)


def test_rows_are_scored_client_by_client():
    """Logits (0, ln 3) are probabilities 1/4 and 3/4: label 1 costs ln 4/3, label 0 costs ln 4."""
    logits = torch.tensor([[0, np.log(3)]] * 3, dtype=torch.float64)
    labels = torch.tensor([1, 0, 1])
    first, second = score_rows(
        {"personal": logits, "x": logits}, labels, [2, 1], TASKS["classes"], frozenset({"x"})
    )
    assert (first["personal"].score, second["personal"].score) == (1, 1)
    assert first["personal"].loss == pytest.approx((np.log(4 / 3) + np.log(4)) / 2)
    assert second["personal"].loss == pytest.approx(np.log(4 / 3))
    assert first["x"].loss is None
    found = score_rows({"v": logits}, labels, [3], TASKS["classes"], measures=measures(["f1"], of_classes(2)))
    assert found[0]["v"].measured["f1"]


def test_losses_of_which_no_mean_can_be_taken():
    scores = torch.tensor([[0.0, 1e300], [0.0, 0.0]], dtype=torch.float64)
    huge, plain = score_rows({"personal": scores}, torch.tensor([0, 1]), [1, 1], TASKS["classes"])
    assert (huge["personal"].score, huge["personal"].loss) == (0, None)
    assert plain["personal"].loss == pytest.approx(np.log(2))
