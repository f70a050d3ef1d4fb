"""Changes of weights go through transforms, whatever the method; the transforms of rayfl do what they say."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch

from rayfl.engine.travel import Download
from rayfl.errors import BadCode, Conflict
from rayfl.methods import METHODS, SCAFFOLD, Ditto, FedAvg
from rayfl.sampling import Bernoulli, Uniform
from rayfl.testing import check_transform
from rayfl.training import Client, Params, State
from rayfl.training.context import Cohort
from rayfl.transforms import TRANSFORMS, Change, ClientDP, LocalDP, Quantise, TopK, Transform
from rayfl.transforms.pipeline import MEMORY
from tests.methods.cases import net_of
from tests.support.by_hand import assert_same, federate, points, ragged, start
from tests.support.federations import INLINE_AND_RAY, federation_from, same_bytes, small
from tests.support.refusals import refused

TINY = "rayfl.testing.by_hand.tiny"
ONE = points([((3, 1), 0)])
SAME = points([((1, 0), 0)], [((1, 0), 0)])
"""Two clients, whose first steps with lr 1 are 1/2 in W[0, 0] and -1/2 in W[1, 0]."""


class Nothing(Transform):
    """Lets changes pass."""

    def at_client(self, change: Change, memory: State, client: Client, received: State) -> Any:
        return change, memory, {}


class Counting(Transform):
    """Counts with every client how often it has trained, with the server the clients of all rounds."""

    sums: ClassVar[tuple[str, ...]] = ("ones", "number")

    def at_client(self, change: Change, memory: State, client: Client, received: State) -> Any:
        assert received == {"ones": received["ones"]}
        return change, {"trained": memory.get("trained", 0) + 1}, {"ones": 1.0, "number": client.id}

    def init_server(self, context: Any) -> State:
        return {"ones": 0.0}

    def at_server(self, combined: Change, memory: State, sums: Any, cohort: Cohort, generator: Any) -> Any:
        assert sums == {"ones": len(cohort.ids), "number": sum(cohort.ids)}
        return combined, {"ones": memory["ones"] + sums["ones"]}


class Plus(Transform):
    """Adds a number to all entries at the server, or multiplies what clients send."""

    at: Literal["server", "client"] = "server"
    number: float = 1.0

    def at_client(self, change: Change, memory: State, client: Client, received: State) -> Any:
        factor = self.number if self.at == "client" else 1.0
        return {key: factor * each for key, each in change.items()}, memory, {}

    def at_server(self, combined: Change, memory: State, *given: Any) -> Any:
        more = self.number if self.at == "server" else 0.0
        return {key: each + more for key, each in combined.items()}, memory


class ByExpected(Nothing):
    """Divides by the expected number of clients, and adds a number before."""

    divisor: ClassVar[Literal["cohort", "expected"]] = "expected"
    number: float = 0.0

    def at_server(self, combined: Change, memory: State, *given: Any) -> Any:
        return {key: each + self.number for key, each in combined.items()}, memory


def weight(run: Any) -> torch.Tensor:
    found: torch.Tensor = run.server.state["weights"]["head.weight"]
    return found


# ---- halves, memories and sums


@pytest.mark.parametrize(
    "name", ["FedAvg", "SCAFFOLD", "FedCO2", "FedDBE", "FedBABU", "PartialFed", "FedDyn"]
)
def test_a_transform_that_does_nothing_changes_nothing(name: str) -> None:
    """But for the rounding of sums of changes, whatever the hooks of the method."""
    runs = [
        federate(METHODS[name](), ragged(), TINY, [[0, 1, 2], [1, 3]], transforms=transforms)
        for transforms in ((), [Nothing()])
    ]
    assert_same(runs[0].values(), runs[1].values(), 1e-12)


def test_memories_stay_with_their_clients_and_the_server() -> None:
    """Two of a kind have one each, and the method sees neither."""
    cohorts = [[0, 1], [1, 2], [1]]
    run = federate(SCAFFOLD(), ragged(), TINY, cohorts, transforms=[Counting(), Counting()])
    kept = {i: state[MEMORY] for i, state in run.worker.states.items()}
    assert {i: own["1 Counting"]["trained"] for i, own in kept.items()} == {0: 1, 1: 3, 2: 1}
    assert kept[1]["0 Counting"] == {"trained": 3}
    assert run.server.memory == {"0 Counting": {"ones": 5.0}, "1 Counting": {"ones": 5.0}}
    assert run.results[0].up["1 Counting"] == [8, 8]  # two numbers
    assert run.worker.state(1, run.worker.client(1, 3)).keys() == {"control"}
    bare = federate(SCAFFOLD(), ragged(), TINY, cohorts)
    hidden = {name: t for name, t in run.values().items() if "transforms" not in name}
    assert_same(hidden, bare.values(), 1e-12)


def test_what_the_server_keeps_travels_to_the_device() -> None:
    worker = start(FedAvg(), ONE).worker
    worker.device = torch.device("meta")
    found = worker._download_on_device(Download({}, {}, {"0 Own": {"t": torch.ones(1)}}))
    assert found.transforms["0 Own"]["t"].device.type == "meta"


class WithTransforms(FedAvg):
    """Keeps something by the name that the option has."""

    def init_server(self, context: Any) -> State:
        return {"weights": context.initial, "transforms": 1.0}

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        return {**up, "transforms": server["transforms"] + 1}


def test_a_method_may_keep_something_called_transforms(tmp_path: Path) -> None:
    """A resumed run does not take it for what transforms keep."""
    first = federate(WithTransforms(), ONE, cohorts=1, transforms=[Counting()]).server
    (tmp_path / "checkpoints").mkdir()
    other = start(WithTransforms(), ONE, transforms=[Counting()]).server
    other.restore(str(tmp_path / "checkpoints"), first.save(str(tmp_path / "checkpoints")))
    assert (other.state["transforms"], other.memory) == (2.0, {"0 Counting": {"ones": 1.0}})


def test_clients_go_in_order_and_the_server_in_reverse() -> None:
    """One step is (3/2, 1/2; -3/2, -1/2): 2 * (...) at the client, + 1 and then + 10 at the server."""

    class Doubles(Plus):
        def at_server(self, combined: Change, *given: Any) -> tuple[Change, State]:
            return {key: 2 * each for key, each in combined.items()}, {}

    step = torch.tensor([[1.5, 0.5], [-1.5, -0.5]], dtype=torch.float64)
    run = federate(FedAvg(), ONE, cohorts=1, lr=1.0, transforms=[Plus(), Doubles(at="client", number=3)])
    torch.testing.assert_close(weight(run), 6 * step + 1)
    run = federate(FedAvg(), ONE, cohorts=1, lr=1.0, transforms=[Doubles(at="client", number=3), Plus()])
    torch.testing.assert_close(weight(run), 2 * (3 * step + 1))


def test_models_right_after_training_are_the_clients_own() -> None:
    """Whatever is sent of them."""
    runs = [start(FedAvg(), ragged(), TINY, transforms=each) for each in ((), [TopK(share=0.01)])]
    losses = []
    for run in runs:
        run.round([0, 2, 3], score_splits=["test"])
        losses.append([run.results[-1].scores[i]["test"]["personal"].loss for i in (0, 2, 3)])
    assert losses[0] == losses[1]


def test_a_client_that_takes_no_step_keeps_its_memory() -> None:
    """It adds nothing, so that what is due stays due."""
    run = start(FedAvg(), SAME, transforms=[TopK(share=0.25)], lr=1.0, rounds=2)
    run.round([0])
    before = run.worker.states[0][MEMORY]["0 TopK"]["weights"]["head.weight"].clone()
    assert before.count_nonzero() == 1

    class Resting(FedAvg):
        async def local_update(
            self, client: Client, state: State, down: State
        ) -> tuple[dict[str, Any], State]:
            fitted = await client.fit(down["weights"], client.loss, epochs=0)
            return {"weights": fitted.weights}, state

    idle = start(Resting(), SAME, transforms=[TopK(share=0.25)])
    idle.worker.states[0] = run.worker.states[0]
    idle.round([0])
    assert idle.results[0].idle == {0}
    assert torch.equal(idle.worker.states[0][MEMORY]["0 TopK"]["weights"]["head.weight"], before)
    assert not weight(idle).any()


# ---- the expected number of clients


def test_sums_are_divided_by_the_expected_clients() -> None:
    """Of four: two steps of 1/2 make 1/4, one makes 1/8, and nobody adds only what the server adds."""
    for cohort, number, expected in (([0, 1], 0.0, 0.25), ([1], 0.0, 0.125), ([], 2.0, 0.5)):
        transforms = [ByExpected(number=number)]
        run = federate(FedAvg(), SAME, cohorts=[cohort], lr=1.0, transforms=transforms, expected=lambda n: 4)
        assert weight(run)[0, 0].item() == pytest.approx(expected, abs=1e-15)
    bare = federate(FedAvg(), SAME, cohorts=[[]], transforms=[Plus()])
    assert not weight(bare).any()  # without anybody nothing changes


def test_sums_of_a_method_stay_sums() -> None:
    """SCAFFOLD adds up changes of controls, which are (-1/2, 0; 1/2, 0) in a step of lr 1."""
    federated = {"transforms": [ByExpected()], "expected": lambda n: 4, "lr": 1.0}
    run = federate(SCAFFOLD(), SAME, cohorts=[[0, 1]], **federated)
    bare = federate(SCAFFOLD(), SAME, cohorts=[[0, 1]], lr=1.0)
    torch.testing.assert_close(run.server.state["control"], bare.server.state["control"])
    torch.testing.assert_close(weight(run), weight(bare) / 2)


def test_how_many_clients_are_expected() -> None:
    assert Uniform().expected(0.25, 10) == 2
    assert Bernoulli().expected(0.25, 10) == 2.5


def test_rounds_without_anybody_have_their_step(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"sampling": Bernoulli(), "participation": 1e-9, "method": FedAvg()}
    small(tmp_path / "run", transforms=ByExpected(number=1.0), rounds=2, **settings).run()
    small(tmp_path / "bare", rounds=2, **settings).run()
    one, other = (
        (tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1] for name in ("run", "bare")
    )
    assert one != other


# ---- checks for authors


class Mutates(Nothing):
    """Changes its memory in place."""

    def at_client(self, change: Change, memory: State, client: Client, received: State) -> Any:
        kept = memory.get("weights", change["weights"].zeros())
        for t in kept.values():
            t += 1
        return change, {"weights": kept}, {}


class Draws(Nothing):
    """Draws from a global generator."""

    def at_client(self, change: Change, memory: State, client: Client, received: State) -> Any:
        return {key: each + torch.rand(()) for key, each in change.items()}, memory, {}


class Tells(Nothing):
    """Returns a sum that it does not declare."""

    def at_client(self, change: Change, memory: State, client: Client, received: State) -> Any:
        return change, memory, {"norm": 1.0}


class Free(Nothing):
    """Forgets its bytes."""

    def upload_bytes(self, change: Change, sizes: Mapping[str, int]) -> dict[str, int]:
        return {}


SEEN: dict[str, int] = {}


class Remembers(Nothing):
    """Goes by how many clients this process has seen."""

    def at_client(self, change: Change, memory: State, client: Client, received: State) -> Any:
        SEEN["clients"] = SEEN.get("clients", 0) + 1
        return {key: each * (1 + SEEN["clients"] // 3) for key, each in change.items()}, memory, {}


@pytest.mark.parametrize("transform", [TopK, Quantise, Counting, ByExpected])
def test_transforms_pass_their_checks(transform: Any) -> None:
    check_transform(transform)


@pytest.mark.parametrize(
    ("transform", "check"),
    [
        (Mutates, "client_half_is_a_function: at_client changes what it is handed"),
        (Draws, "client_half_is_a_function: at_client draws"),
        (Remembers, "client_half_is_a_function: at_client gives something else"),
        (Free, "upload_bytes_are_numbers"),
        (Tells, "runs: "),
    ],
)
def test_checks_find_mistakes(transform: Any, check: str) -> None:
    with pytest.raises(AssertionError, match=f"{transform.__name__} fails the check {check}"):
        check_transform(transform)


# ---- what is refused


@pytest.mark.parametrize("transform", [TopK(), Quantise()], ids=str)
def test_methods_whose_clients_send_no_changes_are_refused(tmp_path: Path, transform: Transform) -> None:
    """Uploads are statistics, models one by one, or nothing; or each client gets a model of its own."""
    places = {}
    for name in ("DCPFL", "FD", "FedAMP", "FedFomo", "FedGH", "FedProto", "Local", "FedAvg"):
        try:
            small(
                tmp_path / name,
                method=METHODS[name](),
                net=net_of(name, TINY),
                rounds=1,
                transforms=transform,
            ).run()
        except Conflict as error:
            places[name] = error.place
    assert places == dict.fromkeys(
        ("DCPFL", "FD", "FedAMP", "FedFomo", "FedGH", "FedProto", "Local"), "transforms"
    )


def test_sums_that_are_not_declared_are_refused() -> None:
    class Undeclared(Counting):
        sums: ClassVar[tuple[str, ...]] = ("ones",)

    with refused(BadCode, "Undeclared.at_client"):
        federate(FedAvg(), ragged(), TINY, 1, transforms=[Undeclared()])


def test_one_or_a_list_in_files_and_on_the_command_line(tmp_path: Path) -> None:
    found = federation_from(["--transforms", "TopK", "--transforms.share", "0.5"])
    assert isinstance(found.transforms, TopK)
    small(tmp_path / "run", transforms=[TopK(share=0.5), Quantise(bits=4)], rounds=1).run()
    again = federation_from(["--config", str(tmp_path / "run" / "config.yaml")])
    assert str(again.transforms) == "[TopK(share=0.5), Quantise(bits=4)]"
    assert [str(each) for each in again.plan().transforms] == ["TopK(share=0.5)", "Quantise(bits=4)"]
    file = tmp_path / "options.yaml"
    file.write_text("transforms: [TopK, {class_path: Quantise, init_args: {bits: 4}}]\n")
    assert str(federation_from(["--config", str(file)]).transforms) == "[TopK(), Quantise(bits=4)]"
    assert federation_from([]).plan().transforms == []


# ---- TopK


@pytest.mark.parametrize("name", ["SCAFFOLD", "FedCP", "FedKD", "PFedVEM"])
def test_all_entries_are_no_compression(name: str) -> None:
    transforms = [TopK(share=1.0, error_feedback=False)]
    run, bare = (federate(METHODS[name](), ragged(), TINY, 1, transforms=each) for each in (transforms, ()))
    assert_same(run.values(), bare.values(), 1e-12)


def test_the_largest_entries_travel_and_the_rest_waits() -> None:
    """One sample, (3, 1) of class 0, from W = 0: p = 1/2, so the step of 1 is (3/2, 1/2; -3/2, -1/2).

    A half of 4 entries: the first column travels, and W becomes (3/2, 0; -3/2, 0); the second column is kept.
    Logits are 9/2 and -9/2 then, and the error of the softmax is q = 1 / (1 + e^9). The next change is
    (3q, q; -3q, -q), with what was kept (3q, 1/2 + q; ...), of which the second column travels.
    """
    run = federate(FedAvg(), ONE, cohorts=1, lr=1.0, transforms=[TopK(share=0.5)])

    def kept() -> torch.Tensor:
        found: torch.Tensor = run.worker.states[0][MEMORY]["0 TopK"]["weights"]["head.weight"]
        return found

    torch.testing.assert_close(weight(run), torch.tensor([[1.5, 0], [-1.5, 0]], dtype=torch.float64))
    torch.testing.assert_close(kept(), torch.tensor([[0, 0.5], [0, -0.5]], dtype=torch.float64))
    run.round([0])
    q = 1 / (1 + math.e**9)
    expected = torch.tensor([[1.5, 0.5 + q], [-1.5, -0.5 - q]], dtype=torch.float64)
    torch.testing.assert_close(weight(run), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(kept(), torch.tensor([[3 * q, 0], [-3 * q, 0]], dtype=torch.float64))
    run = federate(FedAvg(), ONE, cohorts=2, lr=1.0, transforms=[TopK(share=0.5, error_feedback=False)])
    expected = torch.tensor([[1.5 + 3 * q, 0], [-1.5 - 3 * q, 0]], dtype=torch.float64)
    torch.testing.assert_close(weight(run), expected, rtol=0, atol=1e-12)
    assert not run.worker.states


def test_bytes_are_those_of_values_and_places() -> None:
    """Of 4 float64 entries a quarter is one: 8 + 4 bytes; of all of them no places are sent."""
    for share, expected in ((0.25, 12), (0.26, 24), (0.5, 24), (0.6, 32), (1.0, 32), (0.001, 12)):
        run = federate(FedAvg(), ONE, cohorts=1, transforms=[TopK(share=share)])
        assert run.results[0].up == {"weights": [expected]}
        assert run.results[0].down == {"weights": [32]}
    # normed: 4 weights and 4 parameters of BatchNorm, half of which travels, and 4 statistics, which all do
    net, half = "tests.support.by_hand.normed", [TopK(share=0.5)]
    run = federate(FedAvg(), ONE, net, 1, batch_size=1, bn_single="eval", transforms=half)
    assert run.results[0].up == {"weights": [4 * 12 + 4 * 8]}
    run = federate(SCAFFOLD(), ONE, cohorts=1, transforms=[TopK(share=0.25)])
    assert run.results[0].up == {"step": [12], "control": [12]}


# ---- Quantise


class Sent(Transform):
    """Keeps what has been sent, to look at it."""

    def at_client(self, change: Change, memory: State, client: Client, received: State) -> Any:
        return change, {"sent": dict(change)}, {}


def _quantised(*values: float, bits: int = 3, seed: int = 0) -> list[float]:
    generator = torch.Generator().manual_seed(seed)
    found = Quantise(bits=bits).compress(Params({"w": torch.tensor(values)}, frozenset("w")), generator)
    return found["w"].tolist()


def test_entries_are_rounded_to_a_grid_of_the_largest() -> None:
    """With 3 bits there are 3 steps on either side: of the largest magnitude 6 they are 0, 2, 4 and 6."""
    assert _quantised(6.0, -4.0, 0.0, 2.0) == [6, -4, 0, 2]
    assert _quantised(0.0, 0.0) == [0, 0]
    drawn = torch.tensor([_quantised(6.0, -1.0, 4.5, seed=seed) for seed in range(4000)])
    assert set(drawn[:, 1].tolist()) == {-2, 0}
    assert set(drawn[:, 2].tolist()) == {4, 6}
    # a mean of 4000 draws of deviation 1 is right to 4/sqrt(4000), nearly always
    torch.testing.assert_close(drawn.mean(0), torch.tensor([6, -1, 4.5]), rtol=0, atol=0.064)


def test_upload_keys_are_rounded_by_draws_of_their_own() -> None:
    """As SCAFFOLD's step and control are; and so are those of two transforms in a list."""
    client = start(FedAvg(), ONE).worker.client(0, 0)
    same = Params({"w": torch.linspace(0, 1, 100)}, frozenset("w"))
    sent, _, _ = Quantise(bits=2).at_client({"a": same, "b": same}, {}, client, {})
    other, _, _ = Quantise(bits=2, error_feedback=True).at_client({"a": same}, {}, client, {})
    assert not torch.equal(sent["a"]["w"], sent["b"]["w"])
    assert not torch.equal(sent["a"]["w"], other["a"]["w"])


def test_quantised_bytes_are_bits_and_scales() -> None:
    """Of 4 entries of 3 bits 12 bits are 2 bytes, and a scale has 4; statistics travel whole."""
    run = federate(FedAvg(), ONE, cohorts=1, transforms=[Quantise(bits=3)])
    assert run.results[0].up == {"weights": [2 + 4]}
    net = "tests.support.by_hand.normed"
    run = federate(FedAvg(), ONE, net, 1, batch_size=1, bn_single="eval", transforms=[Quantise(bits=3)])
    parts = run.server.state["weights"].trainable()
    counted = sum(math.ceil(3 * t.numel() / 8) + 4 for t in parts.values())
    assert run.results[0].up == {"weights": [counted + 4 * 8]}


def test_errors_of_rounding_are_fed_back() -> None:
    """What is sent and kept is the change, and without feedback nothing is kept."""
    fed = [Quantise(bits=2, error_feedback=True), Sent()]
    run = federate(FedAvg(), points([((3, 1), 0), ((1, 2), 1)]), cohorts=1, lr=1.0, transforms=fed)
    bare = federate(FedAvg(), points([((3, 1), 0), ((1, 2), 1)]), cohorts=1, lr=1.0)
    own = run.worker.states[0][MEMORY]
    due = own["0 Quantise"]["weights"] + own["1 Sent"]["sent"]["weights"]
    torch.testing.assert_close(due["head.weight"], weight(bare))
    assert not federate(FedAvg(), ONE, cohorts=1, transforms=[Quantise()]).worker.states


# ---- all, in whole runs

ALL: Sequence[Transform] = [TopK(share=0.3), Quantise(bits=5, error_feedback=True), Counting()]


def test_all_of_them_are_tried() -> None:
    assert {*map(type, ALL), ClientDP, LocalDP} - {Counting} == set(TRANSFORMS.values())


def test_the_stack_agrees_with_the_loop() -> None:
    runs = [
        federate(
            SCAFFOLD(),
            ragged(),
            TINY,
            [[0, 1, 2, 3], [1, 3]],
            execution=execution,
            transforms=ALL[::2],
        )
        for execution in ("loop", "stacked")
    ]
    assert_same(runs[0].values(), runs[1].values(), 1e-9)


@pytest.mark.parametrize("method", [SCAFFOLD(), Ditto()], ids=str)
def test_the_same_bytes_on_actors_and_after_a_resume(tmp_path: Path, kept_actors: None, method: Any) -> None:
    settings: dict[str, Any] = {"method": method, "net": TINY, "clients": 8, "rounds": 3}
    same_bytes(tmp_path, *INLINE_AND_RAY, resumed_after=2, transforms=list(ALL), **settings)
