import numpy as np
import pytest
import torch
import torch.nn.functional as F

from rayfl.evaluation.measures import measures
from rayfl.evaluation.score import BATCH, cut, score, score_rows
from tests.support.nets import make_images, smooth_net


def test_scores_are_those_of_all_samples_at_once():
    net, images = smooth_net(batch_norm=True), make_images(BATCH + 300)
    w, other = net.initial(0), net.initial(1)
    indices = torch.arange(7, BATCH + 290)  # two parts
    seen = []

    def predict(x):
        assert not torch.is_grad_enabled()
        seen.append(len(x))
        return {"personal": net.eval(w, x), "distances": net.eval(other, x)}

    found = score(predict, images, indices, frozenset({"distances"}))
    assert max(seen) <= BATCH
    assert sum(seen) == len(indices)
    x, y = images.batch(indices)
    for view, weights in (("personal", w), ("distances", other)):
        logits = net.eval(weights, x)
        assert found[view].correct == (logits.argmax(1) == y).sum().item()
    assert found["personal"].loss == pytest.approx(F.cross_entropy(net.eval(w, x), y).item(), abs=1e-12)
    assert found["distances"].loss is None
    assert type(found["personal"].correct) is int


def test_scoring_changes_nothing():
    net, images = smooth_net(batch_norm=True), make_images(20)
    w = net.initial(0)
    before = w.clone()
    score(lambda x: {"v": net.eval(w, x)}, images, torch.arange(20))
    assert all(torch.equal(w[n], before[n]) for n in w)


def test_clients_are_cut_by_their_samples():
    """Up to 256 samples go together; a client with more is alone."""
    assert cut([2, 5, 6, 7, 8, 9], [200, 56, 1, 255, 300, 0]) == [(2, 5), (6, 7), (8,), (9,)]
    assert cut([], []) == []


def test_rows_are_scored_client_by_client():
    """Logits (0, ln 3) are probabilities 1/4 and 3/4: label 1 costs ln 4/3, label 0 costs ln 4."""
    logits = torch.tensor([[0, np.log(3)]] * 3, dtype=torch.float64)
    labels = torch.tensor([1, 0, 1])
    first, second = score_rows({"personal": logits, "x": logits}, labels, [2, 1], frozenset({"x"}))
    assert (first["personal"].correct, second["personal"].correct) == (1, 1)
    assert first["personal"].loss == pytest.approx((np.log(4 / 3) + np.log(4)) / 2)
    assert second["personal"].loss == pytest.approx(np.log(4 / 3))
    assert first["x"].loss is None
    assert score_rows({"v": logits}, labels, [3], measures=measures(["f1"], 2))[0]["v"].measured["f1"]


def test_losses_of_which_no_mean_can_be_taken():
    scores = torch.tensor([[0.0, 1e300], [0.0, 0.0]], dtype=torch.float64)
    huge, plain = score_rows({"personal": scores}, torch.tensor([0, 1]), [1, 1])
    assert (huge["personal"].correct, huge["personal"].loss) == (0, None)
    assert plain["personal"].loss == pytest.approx(np.log(2))
