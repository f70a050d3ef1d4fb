"""A worker, and a session in one process: whose work counts, and what is kept of it."""

import signal
from dataclasses import replace
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from rayfl import Training
from rayfl.data import ClientData, FederatedData
from rayfl.engine import BadUpdate
from rayfl.engine.base import Plan
from rayfl.engine.inline import Inline, InlineWorkers
from rayfl.engine.server import Server
from rayfl.engine.session import Session
from rayfl.engine.travel import Download, RoundResult
from rayfl.engine.worker import Worker
from rayfl.errors import BadCode, Missing
from rayfl.methods import Cohort, Ditto, FedAvg, Local
from rayfl.training import Gather, Mean, Sum
from rayfl.training.sums import combine
from tests.support.nets import close, make_dataset, same_bits
from tests.support.refusals import refused

SIZES = (12, 17, 0, 9, 10, 5)  # client 2 has no training data


def data() -> FederatedData:
    starts = np.cumsum([0, *SIZES])
    clients_data = [
        ClientData(np.arange(a, b), np.arange(0), np.arange(100, 110)) for a, b in pairwise(starts)
    ]
    return FederatedData(make_dataset(), tuple(clients_data))


class Method(FedAvg):
    """FedAvg that also keeps a personal model and counts; ``spoil`` says what client 3 gets wrong."""

    spoil = ""
    _seen: list[Cohort]

    def __init__(self) -> None:
        self._seen = []

    def uploads(self, context: Any) -> Any:
        return {"weights": Mean(), "count": Sum()}

    def init_client(self, client: Any) -> Any:
        return {"rounds": 0, "own": client.initial}

    async def local_update(self, client: Any, state: Any, down: Any) -> Any:
        factor = float("nan") if self.spoil == "loss" and client.id == 3 else 1.0
        own = await client.fit(
            state["own"], lambda w, batch, factor: factor * client.loss(w, batch), torch.tensor(factor)
        )
        idle = self.spoil == "idle" and client.id == 3
        w = (await client.fit(down["weights"], client.loss, epochs=0 if idle else None)).weights
        if self.spoil == "upload" and client.id == 3:
            w = w * float("inf")
        kept = {"rounds": state["rounds"] + 1, "own": own.weights}
        if self.spoil == "state" and client.id == 3:
            kept["own"] = kept["own"] * float("nan")
        return {"weights": w, "count": torch.ones(1)}, kept

    def aggregate(self, server: Any, up: Any, cohort: Cohort) -> Any:
        self._seen.append(cohort)
        return {"weights": up["weights"], "count": up["count"]}

    def download(self, server: Any) -> Any:
        return {"weights": server["weights"]}


def plan(spoil: str = "", execution: Any = "loop", threads: int = 1, **changes: Any) -> Plan:
    method = Method()
    method.spoil = spoil
    training = Training(lr=0.1, batch_size=5, precision="float64", momentum=0.5)
    engine = Inline(device="cpu", execution=execution, threads=threads)
    return replace(Plan(method, "tests.support.nets.smooth", training, 3, engine), **changes)


def train(made: Plan, groups: Any, **options: Any) -> tuple[Worker, Any, RoundResult]:
    worker = Worker(made, data())
    accumulated, result = worker.train(0, Download({"weights": worker.initial}, {}), groups, **options)
    result.sort()
    return worker, combine(worker.uploads["local_update"], [accumulated]), result


WHOLE = [(0, 1, 2), (3, 4, 5)]


def test_clients_without_data_are_left_out() -> None:
    worker, up, result = train(plan(), WHOLE)
    assert result.ids == [0, 1, 3, 4, 5]
    assert result.steps == [6, 8, 4, 4, 2]
    assert up["count"].item() == 5
    assert sorted(worker.states) == result.ids
    assert not result.bad


def test_stacked_is_the_loop() -> None:
    loop, stacked = (train(plan(execution=e), WHOLE, score_splits=("test",)) for e in ("loop", "stacked"))
    assert close(loop[1], stacked[1], 1e-9)
    assert close(loop[0].states, stacked[0].states, 1e-9)
    assert close(loop[2].loss, stacked[2].loss, 1e-9)
    assert (loop[2].ids, loop[2].steps, loop[2].up) == (stacked[2].ids, stacked[2].steps, stacked[2].up)
    assert {i: s["test"]["personal"].score for i, s in loop[2].scores.items()} == {
        i: s["test"]["personal"].score for i, s in stacked[2].scores.items()
    }


@pytest.mark.parametrize("spoil", ["", "loss", "idle"])
def test_neither_the_order_of_groups_nor_the_size_of_chunks_changes_a_bit(
    monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    expected = train(plan(spoil), WHOLE, score_splits=("test",))
    assert min(expected[2].seconds.values()) > 0
    if spoil == "idle":  # it has made some steps, and counts
        assert (expected[2].steps[2], expected[1]["count"].item()) == (2, 5)
    for at_a_time, groups in (
        (1, WHOLE),
        (2, WHOLE[::-1]),
        (4, WHOLE),
    ):  # with 2 and 4, some are of two groups
        monkeypatch.setattr("rayfl.engine.worker.LOOP_CHUNK", at_a_time)
        found = train(plan(spoil), groups, score_splits=("test",))
        assert same_bits(found[1], expected[1])
        assert same_bits(dict(sorted(found[0].states.items())), dict(sorted(expected[0].states.items())))
        assert replace(found[2], seconds={}) == replace(expected[2], seconds={})


@pytest.mark.parametrize("execution", ["loop", "stacked"])
@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        ("upload", "'weights'"),
        ("loss", "training loss is nan"),
        ("state", "the personal state is not finite"),
    ],
)
def test_a_bad_update_is_neither_added_nor_kept(execution: Any, spoil: str, says: str) -> None:
    """Also where the loss of a fit before the last is not finite; the rest is a mean by samples."""
    worker, up, result = train(plan(spoil, execution=execution), WHOLE, score_splits=("test",))
    assert says in result.bad[3]
    assert list(result.bad) == [3]
    assert result.ids == [0, 1, 3, 4, 5]
    assert 3 not in worker.states
    assert 3 not in result.scores
    assert up["count"].item() == 4
    _, without, _ = train(plan(execution="loop"), [(0, 1, 2), (4, 5)])
    assert close(up, without, 1e-9)
    alone = [(SIZES[i], train(plan(), [(i,)])[1]["weights"]) for i in (0, 1, 4, 5)]
    (_, first), *_ = alone
    mean = sum(((n / 44) * w for n, w in alone), 0 * first)
    assert close(up["weights"], mean, 1e-9)


class Idle(FedAvg):
    """Client 1 makes no step."""

    async def local_update(self, client: Any, state: Any, down: Any) -> Any:
        w = await client.fit(down["weights"], client.loss, epochs=int(client.id != 1))
        return {"weights": w.weights}, state


def test_a_client_without_steps_has_no_weight() -> None:
    both, one = (train(plan(method=Idle()), [group])[1]["weights"] for group in ((0, 1), (0,)))
    assert same_bits(both, one)


def test_validation_images_are_augmented_anew_every_round() -> None:
    """Test images are as they are."""
    images = np.arange(100, 110)
    dataset = replace(make_dataset(), augment="fedbn", val_augment=True)
    worker = Worker(plan(), FederatedData(dataset, (ClientData(np.arange(9), images, images),) * 2))
    download = Download({"weights": worker.initial}, {})
    found = [worker.evaluate(r, download, [[0, 1]], ("val", "test")) for r in (0, 1, 1)]
    losses = [[scores[i]["val"]["personal"].loss for i in (0, 1)] for scores in found]
    assert len({*losses[0], *losses[1]}) == 4
    assert losses[1] == losses[2]
    assert len({scores[i]["test"]["personal"].loss for scores in found for i in (0, 1)}) == 1


def test_the_time_of_a_chunk_is_divided_by_samples() -> None:
    """The next round's placement goes by it."""
    _, _, result = train(plan(), [(0,), (1, 2), (5,)])
    twelve, seventeen, five = (result.seconds[group] for group in [(0,), (1, 2), (5,)])
    assert (twelve / five, seventeen / five) == pytest.approx((12 / 5, 17 / 5))


def test_what_one_client_receives_besides() -> None:
    class Personal(FedAvg):
        async def local_update(self, client: Any, state: Any, down: Any) -> Any:
            return {"weights": down["weights"] * down.get("factor", 1.0)}, state

    worker = Worker(plan(method=Personal()), data())
    accumulated, _ = worker.train(0, Download({"weights": worker.initial}, {1: {"factor": 3.0}}), [(0, 1)])
    expected = worker.initial * ((12 + 3 * 17) / 29)
    assert close(combine(worker.uploads["local_update"], [accumulated])["weights"], expected, 1e-12)

    class Changes(FedAvg):
        async def local_update(self, client: Any, state: Any, down: Any) -> Any:
            down.get("own", torch.ones(2)).add_(1.0)
            return {"weights": down["weights"]}, state

    worker = Worker(plan(method=Changes()), data())
    with refused(BadCode, "Changes.local_update"):
        worker.train(0, Download({"weights": worker.initial}, {1: {"own": torch.ones(2)}}), [(0, 1)])


def test_results_merge_in_the_order_of_clients() -> None:
    one, other = RoundResult(), RoundResult()
    one.add(4, 0.4, 4, {}, {"w": 4})
    one.add(1, 0.1, 1, {}, {"w": 1, "extra": 7})
    other.add(3, 0.3, 3, {"d": 2}, {"w": 3})
    one.merge(other)
    one.sort()
    assert (one.ids, one.loss, one.steps) == ([1, 3, 4], [0.1, 0.3, 0.4], [1, 3, 4])
    assert one.up == {"w": [1, 3, 4], "extra": [7, 0, 0]}
    assert one.down == {"d": [0, 2, 0]}


# ---- a session


def opened(made: Plan, of: FederatedData | None = None) -> tuple[Session, Any]:
    """Return a session in this process, and what holds its server and its worker."""
    of = data() if of is None else of
    workers = InlineWorkers(made, of)
    return Session(made, of, workers), workers


def test_a_bad_update_stops_the_run_or_is_dropped() -> None:
    session, here = opened(plan("upload"))
    with session:
        with refused(BadUpdate, "client 3"):
            session.train(0, WHOLE, "stop")
        before = here.server.state["weights"]
        result = session.train(0, WHOLE, "drop")
        assert list(result.bad) == [3]
        assert not same_bits(here.server.state["weights"], before)
        (cohort,) = here.server.method._seen
        now = here.server.state
        assert session.train(1, [(2,)], "drop").ids == []
        assert here.server.state is now  # where nobody took part
    assert facts(cohort) == ((0, 1, 4, 5), (12, 17, 10, 5), 6, 0, sum(SIZES))


def facts(cohort: Cohort) -> tuple[Any, ...]:
    return cohort.ids, cohort.samples, cohort.context.population, cohort.round, cohort.population_samples


def test_clients_without_steps_are_not_in_the_cohort() -> None:
    """Their uploads are not accumulated either, so that methods can read the two side by side."""

    class Told(Idle):
        _cohorts: ClassVar[list[Cohort]] = []

        def uploads(self, context: Any) -> Any:
            return {"weights": Gather()}

        def aggregate(self, server: Any, up: Any, cohort: Cohort) -> Any:
            self._cohorts.append(cohort)
            assert tuple(up["weights"]) == cohort.ids
            return server

    with opened(plan(method=Told()))[0] as session:
        assert session.train(0, WHOLE).idle == {1}
    assert list(map(facts, Told._cohorts)) == [((0, 3, 4, 5), (12, 9, 10, 5), 6, 0, sum(SIZES))]
    session, here = opened(plan(), replace(data(), unseen=2))  # who never trains is not of the population
    with session:
        session.train(0, [(0, 1)])
        assert list(map(facts, here.server.method._seen)) == [((0, 1), (12, 17), 4, 0, sum(SIZES[:4]))]


def test_the_models_of_a_session_are_those_that_it_scores() -> None:
    session, here = opened(plan(method=Ditto()))
    with session:
        session.train(0, [(0, 1)])
        models = session.models(1, {0, 1})
        x, y = models.batch(0)
        right = {view: int((z.argmax(1) == y).sum()) for view, z in models.scores(0, x).items()}
        scored = session.evaluate(0, [0], ("test",))[0]["test"]
        assert right == {view: score.score for view, score in scored.items()}
        assert same_bits(models._server.state, here.server.state)
        assert models._worker.states.keys() == {0, 1}


def test_a_session_computes_with_the_threads_of_its_engine_and_gives_them_back() -> None:
    before = torch.get_num_threads()
    made = plan(threads=before + 1)
    try:
        Server(made, data())
        assert torch.get_num_threads() == before + 1
        torch.set_num_threads(before)
        with opened(made)[0]:
            assert torch.get_num_threads() == before + 1
            assert not hasattr(made.method, "net")  # the user's is not bound
        assert torch.get_num_threads() == before
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_a_worker_prepares_its_gpu(precision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[bool, bool]] = []

    def prepare(deterministic: bool, tf32: bool) -> None:
        given.append((deterministic, tf32))
        raise Missing("engine.device", "is not there")

    monkeypatch.setattr("rayfl.engine.worker.prepare_gpu", prepare)
    made = plan(training=Training(precision=precision))
    with refused(Missing, "engine.device"):
        Worker(replace(made, engine=replace(made.engine, device="cuda", deterministic=True)), data())
    assert given == [(True, precision == "tf32")]


@pytest.mark.parametrize(("more", "kept"), [(0, 0), (-1, 1)])
def test_from_which_size_on_freed_memory_is_kept(
    monkeypatch: pytest.MonkeyPatch, more: int, kept: int
) -> None:
    """Where twice the weights are more than glibc keeps by itself."""
    asked: list[None] = []
    worker = Worker(plan(), data())
    monkeypatch.setattr("rayfl.engine.worker.keep_freed_memory", lambda: asked.append(None))
    monkeypatch.setattr("rayfl.engine.worker.MMAP_THRESHOLD", 2 * worker.initial.nbytes + more)
    worker.train(0, Download({}, {}), [])
    assert len(asked) == kept


def test_workers_of_a_machine_share_its_memory() -> None:
    engine = replace(plan().engine, state_memory=8e-7)
    worker = Worker(plan(engine=engine), data())
    worker.share_memory(4)
    assert worker.states._memory_limit(1) == 200


def test_the_client_that_methods_see() -> None:
    """It may also train on its test inputs, without labels; every second client has the second net."""
    own = ClientData(np.arange(12, 29), np.arange(90, 93), np.arange(100, 110))
    nets: Any = ["tests.support.nets.smooth", "rayfl.testing.by_hand.tiny"]
    made = plan(method=Local(), net=nets, rounds=9)
    worker = Worker(made, replace(data(), clients=(own,) * 4))
    for id in (2, 3):
        client, blind = worker.client(id, 4), worker.client(id, 4, seed=7, unlabelled=True)
        assert (client.id, client.round, client._rounds, client._seed, blind._seed) == (id, 4, 9, 3, 7)
        for each in (client, blind):
            assert (each.net, each.initial) == (worker._nets[id % 2], worker._initials[id % 2])
        assert [each.val_samples for each in (client, blind)] == [3, 0]
        assert client._indices.tolist() == own.train.tolist()
        assert blind._indices.tolist() == own.test.tolist()
        labels = worker.data.dataset.labels[12:29]
        assert client.class_counts.tolist() == np.bincount(labels, minlength=3).tolist()
        assert blind.class_counts.tolist() == [0, 0, 0]
        assert blind._examples.batch(blind._indices)[1].tolist() == [-1] * 10
        assert [worker._count(id, *split) for split in ((), ("train",), ("val",), ("test",))] == [
            17,
            17,
            3,
            10,
        ]
    assert worker.net is worker._nets[0]
    assert worker.initial is worker._initials[0]


def test_a_loop_takes_clients_at_a_time_that_fit_into_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stack is a group; clients without data are in none."""
    loop, stacked = Worker(plan(), data()), Worker(plan(execution="stacked"), data())
    for size, chunks in (
        (2.9, [[0, 1], [3, 4], [5]]),
        (0.5, [[0], [1], [3], [4], [5]]),
        (9, [[0, 1, 3], [4, 5]]),
    ):
        monkeypatch.setattr("rayfl.engine.worker.LOOP_CHUNK", 3)
        monkeypatch.setattr("rayfl.engine.worker.LOOP_CHUNK_BYTES", int(size * loop.initial.nbytes))
        assert loop._training_chunks(WHOLE) == chunks
    assert stacked._training_chunks([(0, 1, 2), (2,), (3, 4, 5)]) == [[0, 1], [3, 4, 5]]


@pytest.mark.parametrize("name", ["ClientActor", "ServerActor"])
def test_an_actor_has_a_name_and_leaves_ctrl_c_to_the_driver(name: str) -> None:
    pytest.importorskip("ray")
    from rayfl.engine import actors

    handler = signal.getsignal(signal.SIGINT)
    try:
        torch.set_default_dtype(torch.float64)
        actor = getattr(actors, name)("mine", plan(), data(), *([0.0] if name == "ClientActor" else []))
        assert repr(actor).startswith("mine ")
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert torch.get_default_dtype() is torch.float32
        actor._defaults.__exit__(None, None, None)
        assert torch.get_default_dtype() is torch.float64
    finally:
        signal.signal(signal.SIGINT, handler)
        torch.set_default_dtype(torch.float32)
