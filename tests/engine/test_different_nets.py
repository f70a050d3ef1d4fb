"""Clients with different nets: who has which, how they are stacked, recorded, refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

import rayfl.training.stacked
from rayfl import Inline, Ray, Training, UserError, resumed
from rayfl.data import IID, Synthetic
from rayfl.errors import Conflict
from rayfl.methods import DCPFL, METHODS, FedAvg, FedProto, Local
from rayfl.nets import CNN, CNNB, FedAvgCNN, LeNet
from rayfl.settings.description import dump_config
from tests.support.by_hand import assert_same, federate, ragged, start
from tests.support.federations import bytes_of_run, federation_from, small
from tests.support.refusals import refused

DATA = ragged()
NETS = [LeNet(), CNNB()]


@pytest.mark.parametrize("execution", ["loop", "stacked"])
def test_client_k_has_net_k(execution: str) -> None:
    """Local clients do not meet, so each is what it would be among clients with its own net."""
    mixed = federate(Local(), DATA, NETS, 2, execution=execution)
    for i, net in enumerate(NETS * 2):
        pure = federate(Local(), DATA, net, 2, execution=execution)
        tolerance = 0 if execution == "loop" else 1e-9
        assert_same(
            dict(mixed.worker.states[i]["weights"]), dict(pure.worker.states[i]["weights"]), tolerance
        )
        assert mixed.results[1].loss[i] == pytest.approx(pure.results[1].loss[i], rel=1e-9)


def test_equal_nets_are_one_and_share_its_initial_weights() -> None:
    worker = start(Local(), DATA, [LeNet(), CNN(), LeNet()]).worker
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


def test_a_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    mixed(tmp_path / "whole", rounds=2).run()
    mixed(tmp_path / "half", rounds=1).run()
    resumed(tmp_path / "half", {"rounds": 2}).run()
    assert bytes_of_run(tmp_path / "half") == bytes_of_run(tmp_path / "whole")


def test_the_same_bytes_on_actors(tmp_path: Path, kept_actors: None) -> None:
    for k, engine in enumerate((Inline(), Ray(actors=2))):
        mixed(tmp_path / str(k), method=DCPFL(), engine=engine, rounds=2).run()
    assert bytes_of_run(tmp_path / "0") == bytes_of_run(tmp_path / "1")


# ---- what is refused, before anything starts


@pytest.mark.parametrize("name", sorted(n for n, m in METHODS.items() if m().facts.nets == "equal"))
def test_methods_that_average_nets_refuse_different_ones(tmp_path: Path, name: str) -> None:
    with refused(Conflict, "net") as caught:
        mixed(tmp_path / "run", method=METHODS[name](), net=[LeNet(), CNNB(), LeNet()]).run()
    assert "2: LeNet, CNNB" in str(caught.value)
    assert not (tmp_path / "run").exists()


OF_ANY_SIZE = ("FD", "FML", "FedKD", "Local")


@pytest.mark.parametrize("name", OF_ANY_SIZE)
def test_features_may_have_any_size(tmp_path: Path, name: str) -> None:
    net = [LeNet(), FedAvgCNN()]
    assert mixed(tmp_path / "run", method=METHODS[name](), net=net, rounds=1).run().complete


@pytest.mark.parametrize(
    "name", sorted(n for n, m in METHODS.items() if m().facts.nets != "equal" and n not in OF_ANY_SIZE)
)
def test_features_must_have_one_size(tmp_path: Path, name: str) -> None:
    with refused(Conflict, "net") as caught:
        mixed(tmp_path / "run", method=METHODS[name](), net=[LeNet(), FedAvgCNN()]).run()
    assert "LeNet 84, FedAvgCNN 512" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_one_net_in_a_list_is_no_difference(tmp_path: Path) -> None:
    for k, net in enumerate(([LeNet(), LeNet()], LeNet())):
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
    run = start(Local(), DATA, LeNet())
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
        federate(Drawing(), DATA, LeNet(), 1)
