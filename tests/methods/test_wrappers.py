"""Methods around methods: nothing gets lost on the way through, and TopK and SignFlip do what they say."""

import inspect
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rayfl import Inline, Ray, UserError, evaluation, resumed
from rayfl.data import DomainPerClient, Synthetic
from rayfl.errors import BadCode, BadValue, Conflict, Missing, Unknown
from rayfl.methods import (
    FDSE,
    METHODS,
    SCAFFOLD,
    WRAPPERS,
    Cohort,
    Facts,
    FedAvg,
    FedBN,
    FedCP,
    FedProx,
    Method,
    SignFlip,
    TopK,
    Wrapper,
)
from rayfl.training import Client, Mean, State
from tests.methods.cases import net_of
from tests.support.by_hand import assert_same, federate, points, ragged, start
from tests.support.federations import bytes_of_run, federation_from, small
from tests.support.nets import make_context
from tests.support.refusals import refused

PUBLIC = [name for name in vars(Method) if not name.startswith("_")]
TINY = "rayfl.testing.by_hand.tiny"
DOMAINS = Synthetic(
    train=240, test=90, shape=(3, 16, 16), domains=3, partition=DomainPerClient(), val_fraction=0.2
)


class Same(Wrapper):
    """Does nothing."""


class Counting(Wrapper):
    """Counts with every client how often it has trained, and uploads nothing else than the wrapped method."""

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        up, kept = await super().local_update(client, state, down)
        return up, {**kept, self.own: state.get(self.own, 0) + 1}


# ---- nothing is lost


@pytest.mark.parametrize("name", PUBLIC)
def test_every_member_of_methods_is_passed_on(name: str) -> None:
    """The wrapped method is asked for it, with what the wrapper is given."""
    assert name in vars(Wrapper), f"Wrapper does not pass on {name}"
    member, calls = vars(Method)[name], []

    def returning(self: Any, *given: Any) -> Any:
        calls.append(given)
        return name

    async def awaited(self: Any, *given: Any) -> Any:
        return returning(self, *given)

    is_function = inspect.isfunction(member)
    theirs: Any = property(returning)
    if is_function:
        theirs = awaited if inspect.iscoroutinefunction(member) else returning
    wrapper = Same(of=type("Probe", (FedAvg,), {name: theirs})())
    if name == "overrides":
        assert wrapper.overrides("scores") == name  # which the wrapper's class has not
        return
    if not is_function:
        assert getattr(wrapper, name) == name
        return
    given = tuple({"argument": k} for k in range(len(inspect.signature(member).parameters) - 1))
    found = getattr(wrapper, name)(*given)
    if inspect.iscoroutine(found):
        with pytest.raises(StopIteration) as end:
            found.send(None)
        found = end.value.value
    assert calls == [given]
    assert found == name


@pytest.mark.parametrize("name", ["SCAFFOLD", "FedCO2", "FedFomo", "FedDBE", "FedBABU", "PartialFed"])
def test_a_wrapper_that_does_nothing_changes_no_byte(tmp_path: Path, name: str) -> None:
    """Of methods that use different hooks: changes, heads, models for each, an exchange, tuning, choices."""
    for folder, method in (("bare", METHODS[name]()), ("wrapped", Same(of=METHODS[name]()))):
        small(
            tmp_path / folder,
            method=method,
            net=TINY,
            rounds=2,
            clients=6,
            checkpoint_every=1,
            protocol=evaluation.FediOS() if name == "SCAFFOLD" else evaluation.Default(),
        ).run()
    assert bytes_of_run(tmp_path / "wrapped", False) == bytes_of_run(tmp_path / "bare", False)


class Asking(FedAvg):
    """Takes the number of rounds into the server's state."""

    facts = Facts(uses_rounds=True)

    def init_server(self, context: Any) -> State:
        assert context.reductions(self.uploads(context)) == {"weights": Mean("uniform")}
        return {"weights": context.initial, "rounds": context.rounds}


def test_averaging_and_rounds_reach_the_wrapped_method(tmp_path: Path) -> None:
    """And the objects that the user has made are left alone."""
    inner = Asking()
    federation = small(tmp_path / "run", method=Same(of=inner), averaging="uniform", rounds=3)
    assert federation.plan().depends_on_total_rounds
    assert federation.run().complete
    assert federation.result_settings()["rounds"] == 3
    assert inner.facts.averaging == "samples"
    run = start(Same(of=inner), points([((1, 0), 0)]), averaging="uniform", rounds=5)
    assert run.server.state["rounds"] == 5


def test_a_wrapper_may_use_rounds_where_the_wrapped_method_does_not() -> None:
    class Fading(Wrapper):
        @property
        def facts(self) -> Facts:  # type: ignore[override]
            return replace(self.of.facts, uses_rounds=True)

        def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
            new = super().aggregate(server, up, cohort)
            share = 1 - cohort.round / cohort.context.rounds
            return {"weights": server["weights"] + share * (new["weights"] - server["weights"])}

    data = points([((1, 0), 0)])
    run = federate(Fading(of=FedAvg()), data, cohorts=2, lr=1.0)
    q = 1 / (1 + math.e)
    assert run.server.state["weights"]["head.weight"][0, 0].item() == pytest.approx(1 / 2 + q / 2, abs=1e-12)


def test_what_a_wrapper_keeps_with_clients_is_its_own() -> None:
    """Two wrappers and the method share a client's state without seeing each other's part."""
    run = federate(Counting(of=TopK(of=SCAFFOLD(), share=0.5)), ragged(), TINY, [[0, 1], [1, 2], [1]])
    kept = {i: state["of Counting"] for i, state in run.worker.states.items()}
    assert kept == {0: 1, 1: 3, 2: 1}
    assert run.worker.states[1].keys() == {"control", "of TopK", "of Counting"}
    bare = federate(TopK(of=SCAFFOLD(), share=0.5), ragged(), TINY, [[0, 1], [1, 2], [1]])
    assert_same(
        {k: v for k, v in run.values().items() if "of Counting" not in k},
        {k: v for k, v in bare.values().items() if "of Counting" not in k},
    )


class Remembering(FedAvg):
    """Keeps something in itself."""

    def __init__(self) -> None:
        """Without an ``__init__`` of its own it could not write to itself at all."""

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        self.last = client.id
        return await super().local_update(client, state, down)


def test_the_memory_of_a_wrapped_method_is_seen(tmp_path: Path) -> None:
    with refused(BadCode, "Same.local_update"):
        small(tmp_path / "run", method=Same(of=Remembering()), rounds=1).run()


def test_unseen_domains_go_through(tmp_path: Path) -> None:
    """FDSE adapts, and gives new clients what others have."""
    settings: dict[str, Any] = {"rounds": 1, "participation": 1.0, "clients": 3, "unseen": "domain1"}
    settings |= {"net": "tests.support.by_hand.dse", "data": DOMAINS}
    for folder, method in (("bare", FDSE()), ("wrapped", Same(of=FDSE()))):
        small(tmp_path / folder, method=method, **settings).run()
    bare, wrapped = ((tmp_path / folder / "metrics.jsonl").read_text() for folder in ("bare", "wrapped"))
    assert "unseen_adapted" in bare
    assert wrapped == bare


@pytest.mark.parametrize("wrapper", [TopK, SignFlip])
def test_methods_without_weights_in_their_uploads_are_refused(wrapper: type[Wrapper]) -> None:
    """Those whose uploads are statistics or models one by one, and the one that uploads nothing."""
    places = {}
    for name, method in METHODS.items():
        try:
            start(wrapper(of=method(), share=0.5), ragged(), net_of(name, TINY))  # type: ignore[call-arg]
        except Conflict as error:
            places[name] = error.place
    odd = ("DCPFL", "FD", "FedAMP", "FedFomo", "FedGH", "FedProto", "Local")
    assert places == dict.fromkeys(odd, "method.of")


# ---- around nothing, or itself


def test_a_wrapper_needs_another_method() -> None:
    for cls in (*WRAPPERS.values(), Same):
        with refused(Missing, "method.of"):
            cls()
        with refused(BadValue, "method.of"):
            cls(of="FedAvg")
        with refused(BadValue, "method.of"):
            cls(of=None)
        with refused(Conflict, "method.of"):
            cls(of=cls(of=FedAvg()))
    with refused(Conflict, "method.of"):
        TopK(of=SignFlip(of=TopK(of=FedAvg())))


@pytest.mark.parametrize(
    ("options", "kind", "place"),
    [
        ("--method TopK", Missing, "method.of"),
        ("--method TopK --method.of TopK", Missing, "method.of.of"),
        ("--method TopK --method.of FedPrx", Unknown, "method.of"),
        ("--method TopK --method.of FedBN --method.of.mu 1", Unknown, "method.of.mu"),
        ("--method TopK --method.of FedAvg --method.mu 1", Unknown, "method.mu"),
        ("--method TopK --method.of FedProx --method.of.mu -1", BadValue, "method.of.mu"),
        ("--method TopK --method.of FedAvg --method.share 0", BadValue, "method.share"),
        ("--method TopK --method.of FedAvg --method.share 1.1", BadValue, "method.share"),
        ("--method SignFlip --method.of FedAvg --method.share -0.1", BadValue, "method.share"),
        ("--method SignFlip --method.of FedAvg --method.scale 0", BadValue, "method.scale"),
        ("--method SignFlip --method.of SignFlip --method.of.of FedAvg", Conflict, "method.of"),
    ],
)
def test_bad_command_lines(options: str, kind: type[UserError], place: str) -> None:
    with refused(kind, place):
        federation_from(options.split())


def test_the_command_line_says_what_python_says(tmp_path: Path) -> None:
    """A run's configuration can be read again, and options of the wrapped method changed."""
    given = "--method TopK --method.of FedProx --method.of.mu 0.3 --method.share 0.5"
    method = federation_from(given.split()).method
    assert isinstance(method, TopK)
    assert isinstance(method.of, FedProx)
    assert (method.share, method.of.mu) == (0.5, 0.3)
    small(tmp_path / "run", method=TopK(of=FedProx(mu=0.3), share=0.5), rounds=1).run()
    config = str(tmp_path / "run" / "config.yaml")
    again = federation_from(["--config", config, "--method.of.mu", "0.1"]).method
    assert isinstance(again, TopK)
    assert isinstance(again.of, FedProx)
    assert (again.share, again.of.mu) == (0.5, 0.1)
    nested = federation_from(
        ["--method", "SignFlip", "--method.of", "TopK", "--method.of.of", "FedBN"]
    ).method
    assert isinstance(nested, SignFlip)
    assert isinstance(nested.of, TopK)
    assert isinstance(nested.of.of, FedBN)
    file = tmp_path / "options.yaml"
    file.write_text("method: TopK\nmethod.of: FedProx\nmethod.of.mu: 0.2\n")
    of = federation_from(["--config", str(file)]).method.of  # type: ignore[attr-defined]
    assert (type(of), of.mu) == (FedProx, 0.2)


# ---- TopK


@pytest.mark.parametrize("name", ["SCAFFOLD", "FedCP", "FedKD", "PFedVEM"])
def test_all_entries_are_no_compression(name: str) -> None:
    wrapped = TopK(of=METHODS[name](), share=1.0, error_feedback=False)
    run, bare = (federate(m, ragged(), TINY, 1) for m in (wrapped, METHODS[name]()))
    assert_same(run.values(), bare.values(), 1e-12)


def test_the_largest_entries_travel_and_the_rest_waits() -> None:
    """One sample, (3, 1) of class 0, from W = 0: p = 1/2, so the step of 1 is (3/2, 1/2; -3/2, -1/2).

    A half of 4 entries: the first column travels, and W becomes (3/2, 0; -3/2, 0); the second column is kept.
    Logits are 9/2 and -9/2 then, and the error of the softmax is q = 1 / (1 + e^9). The next change is
    (3q, q; -3q, -q), with what was kept (3q, 1/2 + q; ...), of which the second column travels.
    """
    data = points([((3, 1), 0)])
    run = federate(TopK(of=FedAvg(), share=0.5), data, cohorts=1, lr=1.0)
    kept = run.worker.states[0]["of TopK"]["weights"]["head.weight"]
    sent = run.server.state["weights"]["head.weight"]
    torch.testing.assert_close(sent, torch.tensor([[1.5, 0], [-1.5, 0]], dtype=torch.float64))
    torch.testing.assert_close(kept, torch.tensor([[0, 0.5], [0, -0.5]], dtype=torch.float64))
    run.round([0])
    q = 1 / (1 + math.e**9)
    expected = torch.tensor([[1.5, 0.5 + q], [-1.5, -0.5 - q]], dtype=torch.float64)
    torch.testing.assert_close(run.server.state["weights"]["head.weight"], expected, rtol=0, atol=1e-12)
    kept = run.worker.states[0]["of TopK"]["weights"]["head.weight"]
    torch.testing.assert_close(kept, torch.tensor([[3 * q, 0], [-3 * q, 0]], dtype=torch.float64))
    run = federate(TopK(of=FedAvg(), share=0.5, error_feedback=False), data, cohorts=2, lr=1.0)
    expected = torch.tensor([[1.5 + 3 * q, 0], [-1.5 - 3 * q, 0]], dtype=torch.float64)
    torch.testing.assert_close(run.server.state["weights"]["head.weight"], expected, rtol=0, atol=1e-12)
    assert not run.worker.states


def test_bytes_are_those_of_values_and_places() -> None:
    """Of 4 float64 entries a quarter is one: 8 + 4 bytes; of all of them no places are sent."""
    data = points([((3, 1), 0)])
    for share, expected in ((0.25, 12), (0.26, 24), (0.5, 24), (0.6, 32), (1.0, 32), (0.001, 12)):
        run = federate(TopK(of=FedAvg(), share=share), data, cohorts=1)
        assert run.results[0].up == {"weights": [expected]}
        assert run.results[0].down == {"weights": [32]}
    # normed: 4 weights and 4 parameters of BatchNorm, half of which travels, and 4 statistics, which all do
    run = federate(
        TopK(of=FedAvg(), share=0.5), data, "tests.support.by_hand.normed", 1, batch_size=1, bn_single="eval"
    )
    assert run.results[0].up == {"weights": [4 * 12 + 4 * 8]}
    run = federate(TopK(of=SCAFFOLD(), share=0.25), data, cohorts=1)
    assert run.results[0].up == {"step": [12], "control": [12]}


# ---- SignFlip


def test_liars_send_the_opposite() -> None:
    """Two clients with the same sample, whose steps of 1/2 in W[0, 0] cancel if one of them lies."""
    data = points([((1, 0), 0)], [((1, 0), 0)])
    run = federate(SignFlip(of=FedAvg(), share=0.5), data, cohorts=1, lr=1.0)
    assert not run.server.state["weights"]["head.weight"].any()
    run = federate(SignFlip(of=FedAvg(), share=0.5, scale=3.0), data, cohorts=1, lr=1.0)
    assert run.server.state["weights"]["head.weight"][0].tolist() == [-0.5, 0]
    honest = federate(SignFlip(of=FedAvg(), share=0.0), data, cohorts=1, lr=1.0)
    assert honest.server.state["weights"]["head.weight"][0].tolist() == [0.5, 0]


def test_liars_send_the_opposite_policy_of_fedcp() -> None:
    """The policy is a change of the received one, as the extractor is; the own head is not."""
    honest, lied = (
        federate(SignFlip(of=FedCP(), share=share), ragged(), TINY, [[0]]).server for share in (0.0, 1.0)
    )
    before = start(FedCP(), ragged(), TINY).server.state["policy"]
    expected = before - (honest.state["policy"] - before)
    assert_same(dict(lied.state["policy"]), dict(expected), 1e-12)
    assert not torch.equal(lied.state["policy"]["weight"], honest.state["policy"]["weight"])
    assert_same(dict(lied.state["head"]), dict(honest.state["head"]))


def test_who_lies_is_drawn_by_the_seed(tmp_path: Path) -> None:
    def liars(seed: int, share: float, clients: int = 12) -> frozenset[int]:
        return SignFlip(of=FedAvg(), share=share).liars(make_context(_net(), population=clients, seed=seed))

    assert [len(liars(0, share)) for share in (0.0, 0.25, 0.29, 0.5, 1.0)] == [0, 3, 3, 6, 12]
    assert len(liars(0, 0.29, 100)) == 29
    assert liars(0, 0.5) == liars(0, 0.5) > liars(0, 0.25)
    assert len({liars(seed, 0.5) for seed in range(6)}) > 3
    with refused(Conflict, "method.share"):
        small(tmp_path / "run", method=SignFlip(of=FedAvg(), share=0.05)).run()
    assert not (tmp_path / "run").exists()


def _net() -> Any:
    return start(FedAvg(), points([((1, 0), 0)])).worker.net


# ---- both, in whole runs

BOTH = SignFlip(of=TopK(of=SCAFFOLD(), share=0.3), share=0.3)


def test_the_stack_agrees_with_the_loop() -> None:
    runs = [
        federate(BOTH, ragged(), TINY, [[0, 1, 2, 3], [1, 3]], execution=execution)
        for execution in ("loop", "stacked")
    ]
    assert_same(runs[0].values(), runs[1].values(), 1e-9)


def test_the_same_bytes_on_actors_and_after_a_resume(tmp_path: Path, kept_actors: None) -> None:
    settings: dict[str, Any] = {"method": BOTH, "net": TINY, "clients": 8, "rounds": 3}
    small(tmp_path / "inline", **settings).run()
    small(tmp_path / "ray", **settings, engine=Ray(actors=2)).run()
    small(tmp_path / "split", **(settings | {"rounds": 2}), engine=Inline()).run()
    resumed(tmp_path / "split", {"rounds": 3, "quiet": True}).run()
    assert bytes_of_run(tmp_path / "ray") == bytes_of_run(tmp_path / "inline")
    assert bytes_of_run(tmp_path / "split") == bytes_of_run(tmp_path / "inline")
