"""Scripts that look at a trained run: t-SNE of features, and input gradients."""

import sys

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from rayfl import Inline, UserError, load_models
from rayfl.data import EmbeddedDigits
from rayfl.methods import METHODS
from tests.support.examples import example
from tests.support.federations import small

tsne = example("tsne.py")
saliency = example("fedios/saliency.py")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run on three domains, with two nets a client."""
    folder = tmp_path_factory.mktemp("looking") / "run"
    settings = {"method": METHODS["FedCO2"](), "data": EmbeddedDigits(), "clients": 3, "rounds": 1}
    small(folder, **settings, participation=1.0, eval_every=0, engine=Inline()).run()
    return folder


def test_features_are_collected_with_their_labels(run):
    models = load_models(run)
    found = tsne.collect(models, "offline", samples=7, clients=2)
    assert found["features"].shape == (14, 84)
    assert found["client"].tolist() == [0] * 7 + [1] * 7
    assert found["domain"].tolist() == [models.data.clients[k].domain for k in found["client"]]
    x, y = models.batch(1)
    with torch.no_grad():
        known = models.features(1, x)["offline"]
    for z, label in zip(torch.from_numpy(found["features"][7:]), found["label"][7:]):
        (k,) = torch.nonzero((known - z).abs().amax(1) < 1e-5)[0]
        assert int(y[k]) == label
    assert len(set(found["label"])) > 3  # not the first of a sorted part
    with pytest.raises(UserError, match="the view personal has no features; there are online, offline"):
        tsne.collect(models, "personal", 7, 2)


@pytest.mark.parametrize(
    ("script", "options"),
    [
        (tsne, "--samples 12 --perplexity 5 --panels together"),
        (tsne, "--samples 12 --perplexity 5 --panels client"),
        (saliency, "--views online,offline --copies 2"),
    ],
)
def test_pictures_are_drawn_from_the_command_line(run, tmp_path, capsys, monkeypatch, script, options):
    path = tmp_path / "new" / "picture.png"
    monkeypatch.setattr(sys, "argv", ["script.py", str(run), "--save", str(path), *options.split()])
    assert script.main() == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert len(np.unique(imread(path)[..., :3].reshape(-1, 3), axis=0)) > 50


def test_the_gradient_of_a_linear_score_is_its_weight():
    class Linear:
        def scores(self, client, x):
            return {"a": torch.stack([3 * x[:, 0, 1, 1], -x.sum((1, 2, 3))], 1)}

    x, y = torch.zeros(2, 3, 5, 5), torch.tensor([0, 1])
    maps = saliency.input_gradients(Linear(), 0, x, y, ["a"], 0.0, 2, 0)
    assert maps["a"][0, 1, 1] == pytest.approx(3 / 9)  # one pixel of 3, smoothed over nine
    assert maps["a"][0, 4, 4] == 0
    assert maps["a"][1, 2, 2] == pytest.approx(1)


def test_the_first_image_of_each_class():
    x, y = torch.arange(4.0)[:, None], torch.tensor([2, 0, 2, 1])
    images, labels = saliency.first_of_classes(x, y, 2)
    assert (images.flatten().tolist(), labels.tolist()) == ([1.0, 3.0], [0, 1])


@pytest.mark.parametrize(
    ("look", "options", "message"),
    [
        (saliency.saliency, {}, "has no view generic; its views are personal"),
        (saliency.saliency, {"copies": 0}, "--copies is 0"),
        (saliency.saliency, {"noise": -1.0}, "--noise is -1.0"),
        (tsne.tsne, {"samples": 0}, "--samples is 0"),
        (tsne.tsne, {"perplexity": 1e4}, "below the number of samples"),
    ],
)
def test_bad_options_are_refused(run, look, options, message):
    with pytest.raises(UserError, match=message):
        look(str(run) if look is saliency.saliency else [str(run)], **options)
