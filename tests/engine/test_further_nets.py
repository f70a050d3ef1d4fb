"""Methods with a net of their own beside that of the clients."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rayfl import Training, UserError, load_models
from rayfl.errors import BadValue, Conflict, Missing
from rayfl.methods import FML, FedAvg
from rayfl.nets import CNNB
from rayfl.testing.checks import TINY, TINY_WIDE
from tests.support.by_hand import assert_same, federate, points, ragged, start
from tests.support.federations import federation_from, small
from tests.support.refusals import refused

LINEAR, TWO_LAYER = "tests.support.by_hand.linear", "tests.support.by_hand.two_layer"
NORMED = "tests.support.by_hand.normed"
DATA = points([((1, 0), 0), ((0, 1), 1)], [((1, 1), 0)])


def test_the_server_has_the_second_net_and_clients_have_both() -> None:
    run = federate(FML(meme=TWO_LAYER), DATA, LINEAR, cohorts=1)
    assert run.server.state["weights"].keys() == {"conv.1.weight", "head.weight"}
    assert run.worker.states[0]["own"].keys() == {"head.weight"}
    assert run.server.context.nets["meme"].module.head.in_features == 2
    x = torch.tensor([[[[1.0, 2.0]]]], dtype=torch.float64)
    w = run.server.state["weights"]
    expected = (w["head.weight"] @ w["conv.1.weight"] @ x.flatten())[None]
    torch.testing.assert_close(run.scores(0, x)["global"], expected)
    torch.testing.assert_close(
        run.scores(0, x)["personal"], x[0, 0] @ run.worker.states[0]["own"]["head.weight"].T
    )


def test_none_is_the_net_of_the_run() -> None:
    """With weights of its own all the same."""
    run = start(FML(), ragged(), TINY)
    assert run.worker.client(0, 0).nets["meme"] is run.worker.net
    own = run.server.context.initial_of("meme")
    assert own.keys() == run.worker.initial.keys()
    assert not torch.equal(own["head.weight"], run.worker.initial["head.weight"])
    assert start(FedAvg(), ragged(), TINY).worker.context.nets == {}


def test_the_stack_agrees_with_the_loop() -> None:
    cohorts = [[0, 1, 2, 3], [1, 3]]
    runs = [
        federate(FML(meme=TINY_WIDE), ragged(), TINY, cohorts, execution=execution)
        for execution in ("loop", "stacked")
    ]
    assert_same(runs[0].values(), runs[1].values(), 1e-9)


@pytest.mark.parametrize("execution", ["loop", "stacked"])
def test_batch_norm_in_the_second_net_alone_is_minded(execution: str) -> None:
    """Of three samples and batches of two the last one joins; a client of one sample is in eval mode."""
    data = points([((1, 0), 0), ((0, 1), 1), ((1, 2), 1)], [((1, 1), 0)])
    run = federate(FML(meme=NORMED), data, LINEAR, 1, batch_size=2, bn_single="eval", execution=execution)
    assert run.results[0].steps == [1, 1]
    several, single = (run.worker.client(i, 0).nets["meme"] for i in (0, 1))
    assert single is several.eval


def test_it_is_an_option_like_others(tmp_path: Path) -> None:
    def meme_of(*given: str) -> Any:
        return federation_from(given).method.meme  # type: ignore[attr-defined]

    for text, meme in (("CNNB", CNNB()), (NORMED, NORMED)):
        assert meme_of("--method", "FML", "--method.meme", text) == meme
    assert meme_of("--method", "FML") is None
    small(tmp_path / "run", method=FML(meme=CNNB()), net=TINY, rounds=1).run()
    assert meme_of("--config", str(tmp_path / "run" / "config.yaml")) == CNNB()
    found = load_models(tmp_path / "run")
    assert set(found.views) == {"personal", "global"}


@pytest.mark.parametrize(
    ("changes", "kind", "place"),
    [
        ({"method": FML(meme="no.such.net")}, Missing, "method.meme"),
        ({"method": FML(meme=CNNB()), "training": Training(batch_size=1)}, Conflict, "training.batch_size"),
    ],
)
def test_nets_that_do_not_work_are_refused_before_the_run(
    tmp_path: Path, changes: dict[str, Any], kind: type[UserError], place: str
) -> None:
    with refused(kind, place):
        small(tmp_path / "run", **changes).run()
    assert not (tmp_path / "run").exists()


def test_what_is_no_net_is_refused() -> None:
    with refused(BadValue, "method.meme"):
        FML(meme=3)  # type: ignore[arg-type]
