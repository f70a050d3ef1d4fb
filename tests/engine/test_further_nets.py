"""Methods with a net of their own beside that of the clients."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rayfl import Training, UserError, load_models
from rayfl.errors import BadValue, Conflict, Missing
from rayfl.methods import FedAvg, TopK
from rayfl.nets import CNNB, Architecture
from rayfl.testing.checks import TINY, TINY_WIDE
from rayfl.training import Batch, Client, Params, State
from tests.support.by_hand import assert_same, federate, points, ragged, start
from tests.support.federations import federation_from, small
from tests.support.refusals import refused


class Mutual(FedAvg):
    """Two nets that teach each other on every client, of which one is averaged (Shen et al., 2020)."""

    meme: Architecture | str | None = None

    def init_server(self, context: Any) -> State:
        return {"weights": context.initial_of("meme")}

    def init_client(self, client: Client) -> State:
        return {"own": client.initial}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        net, meme = client.net, client.nets["meme"]

        def loss(w: dict[str, Params], batch: Batch, extra: None) -> Tensor:
            own, shared = net(w["own"], batch.x), meme(w["meme"], batch.x)
            alike = -(own.softmax(1) * shared.log_softmax(1)).sum(1).mean()
            return F.cross_entropy(own, batch.y) + F.cross_entropy(shared, batch.y) + alike

        fitted = await client.fit({"own": state["own"], "meme": down["weights"]}, loss)
        return {"weights": fitted.weights["meme"]}, {"own": fitted.weights["own"]}

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        return {
            "personal": client.net.eval(state["own"], x),
            "global": client.nets["meme"].eval(down["weights"], x),
        }


LINEAR, TWO_LAYER = "tests.support.by_hand.linear", "tests.support.by_hand.two_layer"
NORMED = "tests.support.by_hand.normed"
DATA = points([((1, 0), 0), ((0, 1), 1)], [((1, 1), 0)])


def test_the_server_has_the_second_net_and_clients_have_both() -> None:
    run = federate(Mutual(meme=TWO_LAYER), DATA, LINEAR, cohorts=1)
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
    run = start(Mutual(), ragged(), TINY)
    assert run.worker.client(0, 0).nets["meme"] is run.worker.net
    assert run.server.state["weights"].keys() == run.worker.initial.keys()
    assert not torch.equal(run.server.state["weights"]["head.weight"], run.worker.initial["head.weight"])
    again = start(TopK(of=Mutual()), ragged(), TINY)
    assert_same(dict(again.server.state["weights"]), dict(run.server.state["weights"]))
    assert start(FedAvg(), ragged(), TINY).worker.context.nets == {}


@pytest.mark.parametrize("nets", [(TINY, TINY_WIDE), (TINY, None)])
def test_the_stack_agrees_with_the_loop(nets: tuple[str, str | None]) -> None:
    runs = [
        federate(Mutual(meme=nets[1]), ragged(), nets[0], [[0, 1, 2, 3], [1, 3]], execution=execution)
        for execution in ("loop", "stacked")
    ]
    assert_same(runs[0].values(), runs[1].values(), 1e-9)


@pytest.mark.parametrize("execution", ["loop", "stacked"])
def test_batch_norm_in_the_second_net_alone_is_minded(execution: str) -> None:
    """Of three samples and batches of two the last one joins; a client of one sample is in eval mode."""
    data = points([((1, 0), 0), ((0, 1), 1), ((1, 2), 1)], [((1, 1), 0)])
    run = federate(Mutual(meme=NORMED), data, LINEAR, 1, batch_size=2, bn_single="eval", execution=execution)
    assert run.results[0].steps == [1, 1]
    several, single = (run.worker.client(i, 0).nets["meme"] for i in (0, 1))
    assert single is several.eval


def test_it_is_an_option_like_others(tmp_path: Path) -> None:
    path = f"{__name__}.Mutual"
    given = ["--method", path, "--method.meme", "CNNB", "--net", "LeNet"]
    method = federation_from(given).method
    assert isinstance(method, Mutual)
    assert method.meme == CNNB()
    assert federation_from([*given[:2], "--method.meme", NORMED]).method.meme == NORMED  # type: ignore[attr-defined]
    assert federation_from(given[:2]).method.meme is None  # type: ignore[attr-defined]
    small(tmp_path / "run", method=Mutual(meme=CNNB()), net=TINY, rounds=1).run()
    again = federation_from(["--config", str(tmp_path / "run" / "config.yaml")]).method
    assert isinstance(again, Mutual)
    assert again.meme == CNNB()
    found = load_models(tmp_path / "run")
    assert set(found.views) == {"personal", "global"}


@pytest.mark.parametrize(
    ("changes", "kind", "place"),
    [
        ({"method": Mutual(meme="no.such.net")}, Missing, "method.meme"),
        ({"method": TopK(of=Mutual(meme="no.such.net"))}, Missing, "method.meme"),
        (
            {"method": Mutual(meme=CNNB()), "training": Training(batch_size=1)},
            Conflict,
            "training.batch_size",
        ),
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
        Mutual(meme=3)  # type: ignore[arg-type]
