"""What optimisers keep from round to round."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from rayfl import Inline, Training
from rayfl.data import IID, Synthetic
from rayfl.engine.worker import KEPT
from rayfl.errors import Conflict
from rayfl.methods import SCAFFOLD, FedALA, FedAvg, FedCO2, Method, PartialFed, PFedMe, PFedVEM
from rayfl.testing.checks import TINY
from rayfl.training import SGD, Adam, Batch, Client, Params, State
from rayfl.training.loop import run_loop
from rayfl.training.optimisers import Optimiser
from rayfl.training.stacked import run_stacked
from tests.support.by_hand import assert_same, federate, ragged
from tests.support.federations import same_bytes, small
from tests.support.nets import close, make_clients, only, smooth_net, smooth_split
from tests.support.refusals import refused
from tests.support.workers import pretend

EXECUTIONS = pytest.mark.parametrize("run", [run_loop, run_stacked])
KEEPING = {"optimiser": Adam(), "optimiser_state": "kept", "lr": 0.01, "batch_size": 20}


class Seeing(FedAvg):
    """FedAvg that counts its rounds in its state, trains twice, and fails where the state has more."""

    def init_client(self, client: Client) -> State:
        return {"rounds": 0}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        assert state.keys() == {"rounds"}
        first = await client.fit(down["weights"], client.loss)
        second = await client.fit(first.weights, client.loss)
        return {"weights": second.weights}, {"rounds": state["rounds"] + 1}

    async def scores(
        self, client: Client, state: State, down: State, x: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        assert state.keys() == {"rounds"}
        return await super().scores(client, state, down, x)


class Changing(FedAvg):
    """One that trains other weights from round 1 on."""

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        weights: Params = down["weights"]
        if client.round:
            weights = Params(weights.tensors, frozenset(n for n in weights.train_names if "head" in n))
        fitted = await client.fit(weights, client.loss)
        return {"weights": weights.merge(fitted.weights) if client.round else fitted.weights}, state


@EXECUTIONS
@pytest.mark.parametrize(
    ("optimiser", "numbers", "make"),
    [
        (SGD(), {"momentum": 0.9}, lambda p: torch.optim.SGD(p, 0.01, 0.9)),
        (Adam(), {}, lambda p: torch.optim.Adam(p, 0.01)),
    ],
)
def test_rounds_are_as_one_optimiser(run: Any, optimiser: Optimiser, numbers: Any, make: Any) -> None:
    """Three rounds of fits that keep are one run of torch's optimiser, for each number of a fit."""
    net, sizes = smooth_net(), [12, 7]
    weights: dict[tuple[int, int], Params] = {}
    batches: dict[tuple[int, int], list[torch.Tensor]] = {}
    kept: list[Any] = [{}, {}]
    for round in range(3):
        clients = make_clients(net, sizes, round=round, lr=0.01, optimiser=optimiser, **numbers)
        for client, before in zip(clients, kept):
            client._kept = dict(before)
        for number in range(2):
            fits = [c.fit(weights.get((k, number), c.initial), c.loss) for k, c in enumerate(clients)]
            for k, fit in enumerate(fits):
                batches.setdefault((k, number), []).extend(fit.batches)  # type: ignore[attr-defined]
            found = run([only(fit) for fit in fits], lambda k, fitted: None)
            weights |= {(k, number): fitted.weights for k, fitted in enumerate(found)}
        kept = [client._kept for client in clients]
    for (k, number), own in batches.items():
        module = smooth_split().double()
        module.load_state_dict(dict(clients[k].initial))
        its = make(module.parameters())
        for indices in own:
            x, y = clients[k]._examples.batch(indices)
            its.zero_grad()
            F.cross_entropy(module(x), y).backward()
            its.step()
        assert close(dict(weights[k, number]), dict(module.state_dict()), 1e-12)


def test_it_is_saved_and_goes_on_wherever_its_client_trains(tmp_path: Path) -> None:
    """A run in two halves has the bytes of a whole one; methods do not see what is kept; and it counts."""
    settings: dict[str, Any] = {"method": Seeing(), "net": TINY, "checkpoint_every": 1, "clients": 6}
    settings["training"] = Training(**KEEPING)
    whole, *_ = same_bytes(tmp_path, pretend(count=2), Inline(), resumed_after=1, rounds=2, **settings)
    settings["training"] = Training(**(KEEPING | {"optimiser_state": "fresh"}))
    small(tmp_path / "fresh", rounds=2, **settings).run()
    assert (whole / "metrics.jsonl").read_bytes() != (tmp_path / "fresh" / "metrics.jsonl").read_bytes()


def test_what_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    data = Synthetic(train=120, test=60, partition=IID())
    settings: Mapping[str, Any] = {"training": Training(**KEEPING), "data": data, "participation": 1.0}
    with refused(Conflict, "training.optimiser_state"):
        small(tmp_path / "changing", method=Changing(), **settings).run()


class Warming(FedAvg):
    """One that trains beside the model from round 1 on, and throws the result away."""

    phase: str | None = None

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        def halved(w: Params, batch: Batch, extra: None) -> torch.Tensor:
            return client.loss(w, batch) / 2

        if client.round:
            loss = client.loss if self.phase else halved
            await client.fit(down["weights"], loss, stream=1, phase=self.phase)
        fitted = await client.fit(down["weights"], client.loss, stream=0)
        return {"weights": fitted.weights}, state


@pytest.mark.parametrize("execution", ["loop", "stacked"])
@pytest.mark.parametrize("phase", [None, "warm-up"])
def test_fits_of_other_losses_and_names_keep_for_themselves(phase: str | None, execution: str) -> None:
    """Fits that come and go before another one leave its optimiser alone."""
    settings: dict[str, Any] = {"momentum": 0.9, "optimiser_state": "kept", "execution": execution}
    one, other = (
        federate(method, ragged(), TINY, cohorts=3, **settings) for method in (Warming(phase=phase), FedAvg())
    )
    assert_same(dict(one.server.state["weights"]), dict(other.server.state["weights"]))


@pytest.mark.parametrize(
    ("method", "phases"),
    [(FedALA(), {"local"}), (PartialFed(), {"local", "choice"}), (FedCO2(), {"mutual", "adapt"})],
    ids=("FedALA", "PartialFed", "FedCO2"),
)
def test_methods_whose_fits_change_name_their_phases(method: Method, phases: set[str]) -> None:
    """Fed-CO2's mutual phase does not go on with the velocity of its adaptation."""
    run = federate(method, ragged(), TINY, cohorts=3, momentum=0.9, optimiser_state="kept")
    assert run.worker.states[0][KEPT].keys() == phases


@pytest.mark.parametrize(
    ("method", "training", "setting"),
    [
        (SCAFFOLD(), KEEPING | {"optimiser": SGD(), "momentum": 0.5}, "optimiser_state"),
        (SCAFFOLD(), {"optimiser": Adam()}, "optimiser"),
        (PFedVEM(), {"optimiser": Adam()}, "optimiser"),
        (PFedMe(), {"momentum": 0.5}, "momentum"),
        (PFedMe(), {"weight_decay": 0.1}, "weight_decay"),
        (PFedMe(), {"clip": 1.0}, "clip"),
    ],
)
def test_what_a_method_cannot_use_is_refused_before_a_run(
    tmp_path: Path, method: Method, training: Mapping[str, Any], setting: str
) -> None:
    with refused(Conflict, f"training.{setting}"):
        small(tmp_path / "run", method=method, training=Training(**training)).run()
    assert not (tmp_path / "run").exists()


def test_the_loss_of_the_run_and_one_that_is_called_loss_are_two_phases() -> None:
    (client,) = make_clients(smooth_net(), [12])

    def loss(w: Params, batch: Batch, extra: None) -> torch.Tensor:
        return 2 * client.loss(w, batch)

    fits: Any = [client.fit(client.initial, each) for each in (client.loss, loss, client.loss)]
    assert [fit.phase for fit in fits] == ["training.loss 0", "loss 0", "training.loss 1"]
