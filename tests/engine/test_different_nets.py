"""Clients with different nets: who has which, how they are stacked, recorded, refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

import rayfl.training.stacked
from rayfl import Training, UserError
from rayfl.data import IID, Synthetic
from rayfl.errors import Conflict
from rayfl.methods import METHODS, FedAvg, FedProto, Local, Method
from rayfl.nets import CNN, CNNB, FedAvgCNN, LeNet
from rayfl.settings.description import dump_config
from rayfl.testing.checks import TINY, TINY_WIDE
from tests.support.by_hand import assert_same, federate, ragged, start
from tests.support.federations import bytes_of_run, federation_from, small
from tests.support.refusals import refused

DATA = ragged()
NETS = [TINY, TINY_WIDE]


@pytest.mark.parametrize("execution", ["loop", "stacked"])
def test_client_k_has_net_k(execution: str) -> None:
    """Local clients do not meet, so each is what it would be among clients with its own net."""
    mixed = federate(Local(), DATA, NETS, 2, execution=execution)
    for k, net in enumerate(NETS):
        pure = federate(Local(), DATA, net, 2, execution=execution)
        for i in (k, k + 2):
            ours, theirs = (dict(run.worker.states[i]["weights"]) for run in (mixed, pure))
            assert_same(ours, theirs, 0 if execution == "loop" else 1e-9)
            assert mixed.results[1].loss[i] == pytest.approx(pure.results[1].loss[i], rel=1e-9)


def test_equal_nets_are_one_and_share_its_initial_weights() -> None:
    worker = start(Local(), DATA, [TINY, TINY_WIDE, TINY]).worker
    clients = [worker.client(i, 0) for i in range(4)]
    assert [c.net is clients[0].net for c in clients] == [True, False, True, True]
    assert [c.initial is clients[0].initial for c in clients] == [True, False, True, True]
    assert clients[1].initial["conv.0.weight"].shape != clients[0].initial["conv.0.weight"].shape


def test_stacks_are_of_one_net(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    fit = rayfl.training.stacked.fit_stacked

    def recording(requests: Any) -> Any:
        sizes.append([r.client.id for r in requests])
        return fit(requests)

    monkeypatch.setattr(rayfl.training.stacked, "fit_stacked", recording)
    federate(FedProto(), DATA, NETS, 1, execution="stacked")
    assert sorted(sizes) == [[0, 2], [1, 3]]


# ---- records


def mixed(output: Path, **changes: Any) -> Any:
    return small(output, **({"method": FedProto(), "net": [LeNet(), CNN()], "participation": 1.0} | changes))


def test_a_list_of_nets_is_recorded_and_made_again(tmp_path: Path) -> None:
    made = mixed(tmp_path / "run", rounds=1)
    made.run()
    again = federation_from(["--config", str(tmp_path / "run" / "config.yaml")])
    assert again.net == [LeNet(), CNN()]
    assert dump_config(again) == (tmp_path / "run" / "config.yaml").read_text()
    assert federation_from(["--net", "[LeNet, CNN]"]).net == [LeNet(), CNN()]
    assert federation_from(["--net", "LeNet"]).net == LeNet()


# ---- what is refused, before anything starts


def test_what_nets_must_have_in_common() -> None:
    """All other methods average weights of the clients' nets."""
    known = dict.fromkeys(("DCPFL", "FedGH", "FedProto", "LGFedAvg"), "equal_features")
    known |= dict.fromkeys(("FD", "FedKD", "FML", "Local"), "any")
    assert {name: m().facts.nets for name, m in METHODS.items() if m().facts.nets != "equal"} == known


@pytest.mark.parametrize(
    ("method", "nets", "says"),
    [
        (FedAvg(), [LeNet(), CNNB(), LeNet()], "2: LeNet, CNNB"),
        (FedProto(), [LeNet(), FedAvgCNN()], "LeNet 84, FedAvgCNN 512"),
    ],
)
def test_nets_that_have_too_little_in_common_are_refused(
    tmp_path: Path, method: Method, nets: Any, says: str
) -> None:
    with refused(Conflict, "net") as caught:
        mixed(tmp_path / "run", method=method, net=nets).run()
    assert says in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_features_may_have_any_size() -> None:
    federate(Local(), DATA, ["tests.support.by_hand.tiny_of_7", "tests.support.by_hand.tiny_of_9"], 1)


def test_one_net_in_a_list_is_no_difference(tmp_path: Path) -> None:
    for k, net in enumerate(([TINY, TINY], TINY)):
        small(tmp_path / str(k), method=FedAvg(), net=net, rounds=1).run()
    assert bytes_of_run(tmp_path / "0", settings=False) == bytes_of_run(tmp_path / "1", settings=False)


def test_batch_norm_is_looked_for_where_it_is(tmp_path: Path) -> None:
    """Of twelve clients with one sample each, those with odd numbers have BatchNorm."""
    data = Synthetic(train=12, test=12, partition=IID())
    settings: dict[str, Any] = {"data": data, "clients": 12, "rounds": 1, "method": Local()}
    with refused(Conflict, "client 1"):
        mixed(tmp_path / "run", net=[CNN(), CNNB()], **settings).run()
    with refused(Conflict, "training.batch_size"):
        mixed(tmp_path / "run", net=[CNN(), CNNB()], training=Training(batch_size=1), method=Local()).run()


def test_no_net_is_refused() -> None:
    with pytest.raises(UserError, match=r"net is \[\]: it must be a net, or a list of at least one"):
        small(Path("nowhere"), net=[])


# ---- generators of methods


def test_streams_of_clients_and_server() -> None:
    run = start(Local(), DATA, TINY)
    streams = {
        (who, purpose, round): draw.initial_seed()
        for purpose in ("noise", "mask")
        for round in (0, 1)
        for who, draw in {
            "client 0": run.worker.client(0, round).generator(purpose),
            "client 1": run.worker.client(1, round).generator(purpose),
            "server": run.server.context.generator(purpose, round),
        }.items()
    }
    assert len(set(streams.values())) == 12
    assert run.worker.client(1, 1).generator("mask").initial_seed() == streams["client 1", "mask", 1]
    assert isinstance(torch.rand(2, generator=run.worker.client(0, 0).generator("mask")), torch.Tensor)


def test_a_clients_generator_is_not_for_losses() -> None:
    class Drawing(Local):
        async def local_update(self, client: Any, state: Any, down: Any) -> Any:
            def loss(w: Any, batch: Any, extra: Any) -> Any:
                client.generator("noise")

            await client.fit(state["weights"], loss)

    with pytest.raises(RuntimeError, match=r"client\.generator differs between clients"):
        federate(Drawing(), DATA, TINY, 1)
