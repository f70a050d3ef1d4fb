"""An exchange before training, personalising before scoring, downloads per client, own modules."""

import json
import math
import pickle
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rayfl import Callback, Ray, Training, load_models, resumed
from rayfl.data import FederatedData
from rayfl.engine.session import BadUpdate
from rayfl.engine.travel import Download
from rayfl.errors import BadCode
from rayfl.methods import FML, Facts, FedAvg, Method
from rayfl.methods.fedamp import FedAMP
from rayfl.methods.fedbabu import FedBABU
from rayfl.methods.feddbe import FedDBE
from rayfl.methods.fedfomo import FedFomo
from rayfl.methods.perfedavg import PerFedAvg
from rayfl.nets import SplitNet
from rayfl.record.history import round_totals
from rayfl.sampling import Trace
from rayfl.training import Batch, Client, Cosine, Gather, Mean, Params, Reduction, State, Sum
from tests.support.by_hand import assert_same, federate, points, ragged, start
from tests.support.federations import bytes_of_run, records_of, small
from tests.support.nets import close, same_bits
from tests.support.refusals import refused
from tests.support.workers import pretend

TINY = "rayfl.testing.by_hand.tiny"
DATA = points([((1, 0), 0), ((0, 1), 1)], [((4, 3), 0)])


class Stopping(Callback):
    """Ends the first round as a signal does."""

    def after_round(self, run: Any, record: Mapping[str, Any]) -> bool:
        run.asked.set()
        return False


@pytest.mark.parametrize(
    ("method", "engine"),
    [
        (FedDBE(), pretend(count=2)),
        pytest.param(FedDBE(), Ray(actors=2), marks=pytest.mark.slow),
        (FedBABU(tune_epochs=1), pretend(count=2)),
        (FedFomo(), pretend(count=2)),
    ],
    ids=str,
)
def test_the_same_bytes_on_two_workers_and_after_a_stop(
    tmp_path: Path, request: pytest.FixtureRequest, method: Method, engine: Any
) -> None:
    if isinstance(engine, Ray):
        request.getfixturevalue("kept_actors")
    settings: dict[str, Any] = {"method": method, "rounds": 2, "clients": 6, "net": TINY}
    small(tmp_path / "one", **settings).run()
    small(tmp_path / "two", engine=engine, **settings).run()
    small(tmp_path / "stopped", **settings).run([Stopping()])
    resumed(tmp_path / "stopped", {"quiet": True}).run()
    expected = bytes_of_run(tmp_path / "one", False)
    assert bytes_of_run(tmp_path / "two", False) == expected
    assert bytes_of_run(tmp_path / "stopped", False) == expected


# ---- an exchange before training


class Counted(FedAvg):
    """Clients upload their means and numbers before training; the server's state is what they make."""

    every: bool = False

    @property
    def facts(self) -> Facts:  # type: ignore[override]
        return Facts(before="round" if self.every else "once")

    def uploads(self, context: Any) -> Mapping[str, Reduction]:
        before: dict[str, Reduction] = {
            "mean": Mean(before=True),
            "count": Sum(before=True),
            "each": Gather(before=True),
        }
        return {"weights": Mean(), **before}

    async def before_round(self, client: Client, state: State, down: State) -> dict[str, Any]:
        total = await client.total(lambda w, batch, extra: batch.x.sum((0, 1, 2)), down["weights"])
        return {"mean": total / client.samples, "count": 1, "each": client.round}


def test_what_clients_upload_before_a_round_is_in_the_servers_state() -> None:
    """Client 0 has the mean (1/2, 1/2) of two samples, client 1 (4, 3) of one: by samples (5/3, 4/3)."""
    run = federate(Counted(), DATA, cohorts=[[0], [1]])
    before = run.servers[0]["before"]
    assert before["mean"].tolist() == pytest.approx([5 / 3, 4 / 3], abs=1e-12)
    assert (before["count"], before["each"]) == (2, {0: 0, 1: 0})
    assert run.servers[1]["before"]["each"] == {0: 0, 1: 0}  # of the first round
    run.server.keep_exchange()  # of nobody
    assert run.server.state["before"] is run.servers[1]["before"]
    every = federate(Counted(every=True), DATA, cohorts=[[0], [1]])
    assert [server["before"]["each"] for server in every.servers] == [{0: 0}, {1: 1}]
    assert every.servers[1]["before"]["mean"].tolist() == [4, 3]


def test_its_bytes_are_counted_in_both_directions(tmp_path: Path) -> None:
    """Every client that may train is asked: not client 1, which the trace has in no round."""
    lists = tmp_path / "trace.json"
    lists.write_text(json.dumps([{"client": i, "from": 0} for i in (0, 2, 3)]))
    settings: dict[str, Any] = {"clients": 4, "rounds": 2, "participation": 0.5}
    small(tmp_path / "run", method=Counted(), sampling=Trace(path=str(lists)), **settings).run()
    first, second = records_of(tmp_path / "run")
    assert "before_round" not in second
    before = first["before_round"]
    assert before["clients"] == [0, 2, 3]
    assert before["dropped"] == []
    assert before["up"]["count"] == [4, 4, 4]
    totals = round_totals(first)
    for way in ("up", "down"):
        parts = [sum(map(sum, part[way].values())) for part in (first, before)]
        assert parts[1] > 0
        assert totals[way] == sum(parts)


class Forgetful(Counted):
    """Its server keeps the weights alone."""

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Any) -> State:
        assert set(up) == {"weights"}
        return {"weights": up["weights"]}


class Both(Counted):
    async def before_round(self, client: Client, state: State, down: State) -> Any:
        return await super().before_round(client, state, down), state


def test_clients_return_an_upload_which_aggregate_neither_gets_nor_need_keep() -> None:
    assert federate(Forgetful(), DATA, cohorts=2).server.state["before"]["count"] == 2
    with refused(BadCode, "Both.before_round"):
        federate(Both(), DATA, cohorts=1)


class Spoilt(Counted):
    """What client 1 uploads before the first round is not a number."""

    async def before_round(self, client: Client, state: State, down: State) -> dict[str, Any]:
        found = await super().before_round(client, state, down)
        return {**found, "mean": math.nan * found["mean"]} if client.id == 1 else found


def test_what_is_not_finite_stops_the_run_or_is_left_out(tmp_path: Path) -> None:
    with pytest.raises(BadUpdate, match="client 1"):
        small(tmp_path / "stop", method=Spoilt(), participation=1.0, clients=4).run()
    assert records_of(tmp_path / "stop") == []
    run = small(tmp_path / "drop", method=Spoilt(), participation=1.0, clients=4, on_bad_update="drop")
    run.run()
    first = records_of(tmp_path / "drop")[0]
    assert first["before_round"]["dropped"] == [1]
    assert first["dropped"] == []
    assert first["cohort"] == [0, 1, 2, 3]


def test_its_fits_draw_otherwise_than_training_and_keep_nothing() -> None:
    """All else is as in FedAvg."""
    seen = []

    class Looking(FedAvg):
        def uploads(self, context: Any) -> Mapping[str, Reduction]:
            return {"weights": Mean(), "steps": Sum(before=True)}

        async def before_round(self, client: Client, state: State, down: State) -> dict[str, Any]:
            await self.local_update(client, state, down)
            return {"steps": 1}

        async def local_update(
            self, client: Client, state: State, down: State
        ) -> tuple[dict[str, Any], State]:
            fit: Any = client.fit(down["weights"], client.loss)
            seen.append(torch.cat(fit.batches).tolist())
            return {"weights": (await fit).weights}, state

    settings: dict[str, Any] = {"batch_size": 3, "optimiser_state": "kept", "momentum": 0.5}
    run, plain = (federate(method, ragged([12]), TINY, 1, **settings) for method in (Looking(), FedAvg()))
    assert seen[0] != seen[1]
    assert_same(dict(run.server.state["weights"]), dict(plain.server.state["weights"]))


# ---- personalising before scoring


class Leaning(FedAvg):
    """Tunes the head's weights by a step towards the client's own class, and says how it was asked."""

    async def personalise(self, client: Client, state: State, down: State) -> State:
        if client.val_samples:
            raise AssertionError("validation data are in reach")
        fitted = await client.fit(down["weights"], client.loss, epochs=1, lr=1.0, batch_size=0)
        return {**state, "own": fitted.weights}

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        common = await client.eval(down["weights"], x)
        return {
            "personal": await client.eval(state["own"], x) if "own" in state else common,
            "global": common,
        }


def test_scores_are_those_of_the_personalised_state() -> None:
    """Client 1's sample (4, 3) of class 0, from W = 0: a step of 1 gives W[0] = (2, 3/2), W[1] = -W[0]."""
    run = start(Leaning(), DATA)
    x = torch.tensor([[[[4.0, 3.0]]]], dtype=torch.float64)
    scores = run.scores(1, x)
    assert scores["personal"].tolist() == [[12.5, -12.5]]
    assert scores["global"].tolist() == [[0, 0]]
    assert run.worker.states == {}
    found = run.worker.evaluate(0, run.server.download([1]), [[1]], ["test"], to_personalise=[1])[1]["test"]
    assert found["personal"].loss == pytest.approx(math.log1p(math.exp(-25)), rel=1e-9)
    assert found["global"].loss == pytest.approx(math.log(2), rel=1e-12)


@pytest.mark.parametrize(
    ("sizes", "asked", "tuned"), [((12, 0, 5), range(4), [0, 2]), ((4, 4, 4), [0, 2], [0, 2])]
)
def test_who_has_no_data_or_never_trained_is_scored_as_it_is(sizes: Any, asked: Any, tuned: Any) -> None:
    run = start(Leaning(), ragged(sizes), TINY)
    down = run.server.download(range(3))
    found = run.worker.evaluate(0, down, [[0, 1, 2]], ["test"], to_personalise=asked)
    losses = [[view.loss for view in found[i]["test"].values()] for i in range(3)]
    assert [i for i, (personal, common) in enumerate(losses) if personal != common] == tuned


def test_it_is_not_kept_and_moves_no_later_round(tmp_path: Path) -> None:
    """Checkpoints are those of plain FedAvg, and so are the numbers of the global view."""
    for name, method in (("plain", FedAvg()), ("leaning", Leaning())):
        small(tmp_path / name, method=method, rounds=2, net=TINY, eval_points="both").run()
    plain, leaning = (bytes_of_run(tmp_path / name, False) for name in ("plain", "leaning"))
    states = [name for name in plain if name.endswith("safetensors")]
    assert states
    assert all(plain[name] == leaning[name] for name in states)
    for one, other in zip(records_of(tmp_path / "plain"), records_of(tmp_path / "leaning"), strict=True):
        # right after training nobody has personalised
        after = [each["evaluation"]["after_training"]["personal"] for each in (one, other)]
        assert after[0] == after[1]
        now, leaning_now = (each["evaluation"]["after_aggregation"] for each in (one, other))
        assert now["personal"] == leaning_now["global"] != leaning_now["personal"]


@pytest.mark.parametrize("method", [Leaning(), FedBABU(tune_epochs=1), PerFedAvg()], ids=str)
def test_models_are_those_of_the_last_evaluation(tmp_path: Path, method: Method) -> None:
    """Also if they were asked for without data, with a rate that is 0 after the last round, and where no
    gradients are taken.
    """
    settings: dict[str, Any] = {"rounds": 1, "clients": 4, "participation": 1.0, "net": TINY}
    settings["training"] = Training(lr=0.1, batch_size=20, schedule=Cosine())
    small(tmp_path / "run", method=method, **settings).run()
    models, bare = load_models(tmp_path / "run"), load_models(tmp_path / "run", data=False)
    last = records_of(tmp_path / "run")[-1]["evaluation"]["after_aggregation"]["personal"]["test"]
    for i in range(4):
        x, y = models.batch(i)
        with torch.no_grad():
            scores = models.scores(i, x)
        assert int((scores["personal"].argmax(1) == y).sum()) == last["score"][i]
        loss = torch.nn.functional.cross_entropy(scores["personal"], y)
        assert loss.item() == pytest.approx(last["loss"][i], rel=1e-5)
        assert_same(bare.scores(i, x), scores)
        torch.testing.assert_close(models.module(i, "personal")(x), scores["personal"])
        models[i].predict(models.data.dataset.inputs[:2])


# ---- a download per client


def test_what_several_clients_receive_travels_once() -> None:
    """Twenty clients with one model each of five: as many bytes as five models, and what was one is one."""
    models = {j: Params({"w": torch.full((1000,), float(j))}, frozenset({"w"})) for j in range(5)}
    down = Download({}, {i: {"models": {j: models[j] for j in (i % 5, (i + 1) % 5)}} for i in range(20)})
    sent = pickle.dumps(down)
    assert len(sent) < 5 * 4000 + 20000
    there = pickle.loads(sent)
    assert there.for_client(3)["models"][4]["w"] is there.for_client(4)["models"][4]["w"]
    for i in range(20):
        found = there.for_client(i)["models"]
        assert {j: w["w"].mean().item() for j, w in found.items()} == {j: float(j) for j in found}


# ---- modules of the method's own


class Scaled(FedAvg):
    """Its features go through a layer of the method's own, and have a further head."""

    def modules(self, net: Any) -> Mapping[str, Any]:
        size, classes = net.module.head.in_features, net.module.head.out_features
        return {
            "scale": partial(nn.Linear, size, size),
            "more": partial(nn.Linear, size, classes, bias=False),
        }

    def uploads(self, context: Any) -> Mapping[str, Reduction]:
        return dict.fromkeys(("weights", "scale", "more"), Mean())

    def init_server(self, context: Any) -> State:
        return {"weights": context.initial} | {name: context.initial_of(name) for name in ("scale", "more")}

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        net, scale, more = client.net, client.nets["scale"], client.nets["more"]

        def loss(w: dict[str, Params], batch: Batch, extra: None) -> Tensor:
            z = scale(w["scale"], net.features(w["weights"], batch.x))
            return client.loss_of(net.head(w["weights"], z) + more(w["more"], z), batch)

        return (await client.fit(dict(down), loss)).weights, state

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        z = client.nets["scale"].eval(down["scale"], await client.features(down["weights"], x))
        own = client.net.eval.head(down["weights"], z)
        return dict.fromkeys(self.views, own + client.nets["more"].eval(down["more"], z))


def test_modules_of_the_methods_own_train_and_are_averaged() -> None:
    run = federate(Scaled(), ragged(), TINY, cohorts=2)
    first, last = run.server.context.initial_of("more"), run.server.state["more"]
    assert first.keys() == {"conv.weight"}
    assert last["conv.weight"].shape == (4, 5)
    assert not torch.equal(first["conv.weight"], last["conv.weight"])
    stacked = federate(Scaled(), ragged(), TINY, cohorts=2, execution="stacked")
    assert_same(run.values(), stacked.values(), 1e-9)


def test_their_first_weights_follow_from_the_seed_alone() -> None:
    one, same, other = (start(Scaled(), ragged(), TINY, seed=seed).server.context for seed in (1, 1, 2))
    for name in ("scale", "more"):
        first = one.initial_of(name)
        assert same_bits(first, same.initial_of(name))
        assert not close(first, other.initial_of(name), 1e-6)
    assert one.initial_of("scale").train_names == {"conv.weight", "conv.bias"}


def test_a_module_has_a_name_of_its_own() -> None:
    class Same(FML):
        def modules(self, net: Any) -> Mapping[str, Any]:
            return {"meme": partial(nn.Linear, 2, 2)}

    with refused(BadCode, "Same.modules"):
        start(Same(), ragged(), TINY)


# ---- faults that were found


def test_what_is_empty_does_not_take_the_place_of_another() -> None:
    tree = {"a": torch.zeros(0), "b": torch.ones(3), "c": torch.zeros(0, 3), "d": torch.ones(1)}
    found = pickle.loads(pickle.dumps(Download(tree, {}))).everyone
    for key, value in tree.items():
        assert torch.equal(found[key], value)


class Drawing(Counted):
    """Begins with weights of each client's own, and uploads their sum before the first round."""

    def init_client(self, client: Client) -> State:
        return {"own": client.random_weights()}

    async def before_round(self, client: Client, state: State, down: State) -> dict[str, Any]:
        return {**await super().before_round(client, state, down), "each": state["own"]}


def test_a_client_has_one_first_state() -> None:
    """Whether it is asked before a round, or trains."""
    run = federate(Drawing(), ragged([4, 4]), TINY, cohorts=[[0]])
    client = run.worker.client(1, 0)
    assert_same(dict(run.server.state["before"]["each"][1]), dict(client.random_weights()), 0)


class Careless(FedAvg):
    """Does something while it personalises."""

    def __init__(self, does: Any) -> None:
        self.does = does

    def init_client(self, client: Client) -> State:
        return {"n": torch.zeros(1)}

    async def personalise(self, client: Client, state: State, down: State) -> State:
        self.does(client, state, down)
        return {**state}


@pytest.mark.parametrize(
    "does",
    [
        lambda client, state, down: state["n"].add_(1),
        lambda client, state, down: client.fit(down["weights"], client.loss),  # and does not wait for it
        lambda client, state, down: torch.rand(1),
    ],
)
def test_personalising_is_guarded_as_training_is(does: Any) -> None:
    run = federate(Careless(does), ragged([4, 4]), TINY, cohorts=1)
    with refused(BadCode, "Careless.personalise"):
        run.worker.evaluate(0, run.server.download([0, 1]), [[0, 1]], ["test"], to_personalise=[0, 1])


def test_what_is_prepared_does_not_change() -> None:
    class Remembers(FedAvg):
        def prepare(self, context: Any) -> Any:
            return []

        async def local_update(
            self, client: Client, state: State, down: State
        ) -> tuple[dict[str, Any], State]:
            client.context.prepared.append(client.id)
            return await super().local_update(client, state, down)

    with refused(BadCode, "Remembers.local_update"):
        federate(Remembers(), DATA, cohorts=1)


class NoHook(FedAvg):
    def uploads(self, context: Any) -> Mapping[str, Reduction]:
        return {"weights": Mean(), "mean": Mean(before=True)}


class NoUploads(FedAvg):
    async def before_round(self, client: Client, state: State, down: State) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("method", [NoHook(), NoUploads()], ids=str)
def test_uploads_before_a_round_need_the_hook(tmp_path: Path, method: Method) -> None:
    with refused(BadCode, f"{type(method).__name__}.before_round"):
        small(tmp_path / "run", method=method).run()


@pytest.mark.parametrize("method", [FedAMP(), FedFomo()], ids=str)
def test_clients_of_an_unseen_domain_receive_what_there_is(method: Method) -> None:
    run = federate(method, FederatedData(ragged().dataset, ragged().clients, unseen=1), TINY, [[0, 1, 2]])
    scores = run.worker.unseen(0, run.server.download([3]), [3], run.worker.state_for_new_clients([0, 1, 2]))
    assert scores["unseen"].keys() == {3}


def test_dropout_is_the_same_on_both_sides_of_a_difference() -> None:
    """Else the noise would be divided by twice the distance, and a tenth of it would be ten times as much."""
    runs = [
        federate(PerFedAvg(hessian="differences", delta=delta), ragged(), f"{__name__}.dropping", cohorts=1)
        for delta in (1e-3, 1e-4)
    ]
    one, other = (run.server.state["weights"] for run in runs)
    assert float((one - other).norm()) < 1e-3 * float((one - runs[0].worker.initial).norm())


def dropping(shape: tuple[int, ...], classes: int) -> SplitNet:
    """A linear net with dropout."""
    size = math.prod(shape)
    return SplitNet(nn.Flatten(), nn.Sequential(nn.Dropout(0.5)), nn.Linear(size, classes))
