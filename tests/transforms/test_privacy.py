"""Clients' privacy: what is spent, what is clipped, how large the noise is, and what is refused."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from rayfl import resumed
from rayfl.commands.table import _check_same
from rayfl.errors import Conflict, InUse
from rayfl.methods import METHODS, SCAFFOLD, Ditto, FedAvg, FedBN
from rayfl.running.result import Result
from rayfl.sampling import Bernoulli, BySize, CohortDraw, Cyclic, Trace, Uniform
from rayfl.testing import check_transform
from rayfl.training import Context, Mean, Params, Reduction, State, Sum
from rayfl.training.context import Cohort
from rayfl.transforms import ClientDP, LocalDP, TopK
from rayfl.transforms.accounting import Exposure, epsilon_of, noise_for
from rayfl.transforms.attacks import ALIE, SignFlip
from rayfl.transforms.pipeline import Pipeline
from rayfl.transforms.privacy import norm_of
from tests.methods.cases import net_of
from tests.support.by_hand import federate, points, ragged, start
from tests.support.federations import INLINE_AND_RAY, same_bytes, small
from tests.support.nets import make_context
from tests.support.refusals import refused

pytest.importorskip("dp_accounting")
LINEAR = "rayfl.testing.by_hand.linear"
TINY = "rayfl.testing.by_hand.tiny"
SMOOTH = "tests.support.nets.smooth"
ONE = points([((3, 1), 0)])
FOUR = points(*[[((k, 1), k % 2)] for k in range(1, 5)])
MANY = 1000
"""Clients of the golden numbers, of which 50 take part in a round."""


def poisson(share: float, rounds: int) -> tuple[Exposure, ...]:
    return (Exposure("poisson", rounds, share),)


# ---- what is spent


@pytest.mark.parametrize(
    ("exposures", "noise", "epsilon"),
    [
        (poisson(0.04, 2250), 1.5, 6.7688),
        (poisson(0.05, 200), 1.0, 4.7659),
        ((Exposure("fixed", 200, size=50, clients=MANY),), 1.0, 58.400),
        ((Exposure("fixed", 200, size=50, clients=MANY),), 2.0, 9.2795),
        ((Exposure("certain", 10),), 1.0, 17.857),
        ((Exposure("certain", 200),), 1.0, 159.44),
        (poisson(1.0, 10), 1.0, 17.857),
        ((Exposure("poisson", 0, 0.5), Exposure("certain", 10)), 1.0, 17.857),
    ],
)
def test_epsilon_is_that_of_published_accountants(
    exposures: tuple[Exposure, ...], noise: float, epsilon: float
) -> None:
    assert epsilon_of(exposures, noise, 1e-5) == pytest.approx(epsilon, abs=0.006 if epsilon > 100 else 1e-3)


def test_drawn_and_certain_rounds_add_up() -> None:
    """Drawn with probability 0.9999 is nearly certain: nine rounds and one more are ten."""
    both = (Exposure("poisson", 9, 0.9999), Exposure("certain", 1))
    assert epsilon_of(both, 1.0, 1e-5) == pytest.approx(17.857, rel=2e-3)
    alone = epsilon_of(both[:1], 1.0, 1e-5)
    assert alone < epsilon_of(both, 1.0, 1e-5)


def test_nothing_is_spent_before_a_round_and_all_without_noise() -> None:
    assert epsilon_of((), 1.0, 1e-5) == epsilon_of(poisson(0.1, 0), 1.0, 1e-5) == 0
    assert epsilon_of(poisson(0.1, 1), 0.0, 1e-5) == math.inf


def test_the_noise_for_an_epsilon() -> None:
    exposures = poisson(0.04, 2000)
    noise = noise_for(exposures, 8, 1e-5)
    assert noise == pytest.approx(1.29, rel=0.01)
    assert epsilon_of(exposures, noise, 1e-5) <= 8 < epsilon_of(exposures, noise - 2e-4, 1e-5)


@pytest.mark.parametrize(
    ("sampling", "share", "done", "expected"),
    [
        (Bernoulli(), 0.05, 7, (Exposure("poisson", 7, 0.05), Exposure("certain", 0))),
        (Bernoulli(last="all"), 0.05, 9, (Exposure("poisson", 9, 0.05), Exposure("certain", 0))),
        (Bernoulli(last="all"), 0.05, 10, (Exposure("poisson", 9, 0.05), Exposure("certain", 1))),
        (Uniform(), 0.05, 7, (Exposure("fixed", 7, size=5, clients=100),)),
        (Uniform(), 1.0, 7, (Exposure("certain", 7),)),
        (Uniform(once=True), 0.05, 7, (Exposure("certain", 7),)),
        (Cyclic(), 0.3, 7, (Exposure("certain", 3),)),  # 210 turns of 100 clients
        (BySize(), 0.05, 7, None),
        (Trace(path="nowhere"), 0.05, 7, None),
    ],
    ids=str,
)
def test_what_is_proved_of_a_sampling(sampling: Any, share: float, done: int, expected: Any) -> None:
    assert sampling.exposures(share, 100, 10, done) == expected


def test_local_privacy_counts_uploads_that_could_have_been_any_other() -> None:
    """Two changes of norm C differ by up to 2 C, so noise 2 is that of 1; ten rounds are 17.857."""
    private = LocalDP(noise_multiplier=2.0)
    for exposures in ((Exposure("certain", 10),), poisson(0.1, 10)):
        assert private.spent(exposures) == pytest.approx(17.857, abs=1e-3)


# ---- what is clipped, and the noise


def test_one_client_more_changes_the_sum_by_the_clip_at_most() -> None:
    """All keys together: SCAFFOLD's step and control; clients' changes are larger than the clip."""
    for method, keys in ((FedAvg(), ["weights"]), (SCAFFOLD(), ["weights", "control"])):
        private = ClientDP(clip=0.01, noise_multiplier=0.0)
        runs = [
            federate(method, FOUR, cohorts=[cohort], transforms=[private], expected=lambda n: 4)
            for cohort in ([0, 1, 2, 3], [0, 1, 2])
        ]
        one, other = (
            {"weights": 4 * run.server.state["weights"], "control": 4 * run.server.state.get("control", ONLY)}
            for run in runs
        )  # SCAFFOLD divides the sum of controls by the population, which is 4, too
        change = {key: one[key] - other[key] for key in keys}
        assert norm_of(change) == pytest.approx(0.01, rel=1e-12)


ONLY = Params({}, frozenset())


def test_small_changes_are_left_as_they_are() -> None:
    private = ClientDP(clip=100.0, noise_multiplier=0.0)
    run = federate(FedAvg(), FOUR, cohorts=1, transforms=[private])
    assert run.results[0].up == {"weights": [32] * 4}  # and no bits, as for an adaptive clip
    bare = federate(FedAvg(), FOUR, cohorts=1, averaging="uniform")
    for name, t in bare.server.state["weights"].items():
        torch.testing.assert_close(run.server.state["weights"][name], t)


def at_server(private: ClientDP, change: Params, expected: float, memory: Any) -> tuple[Params, Any]:
    """Return what comes out of the server half when nobody has taken part."""
    net = start(FedAvg(), ONE).worker.net
    cohort = Cohort((), (), 0, 1, make_context(net), expected)
    pipeline = Pipeline({"weights": FedAvg().uploads(cohort.context)["weights"]}, expected, [private])
    up, kept = pipeline.at_server({}, {"weights": change}, {"0 ClientDP": memory} if memory else {}, cohort)
    return up["weights"], kept.get("0 ClientDP")


def test_the_variance_of_the_noise_that_arrives() -> None:
    """(noise * clip / expected)^2 in a million entries, whose variance is right to 1 % nearly always."""
    zeros = Params({"w": torch.zeros(10**6, dtype=torch.float64)}, frozenset("w"))
    found, _ = at_server(ClientDP(clip=3.0, noise_multiplier=2.0), zeros, 4.0, None)
    assert found["w"].var().item() == pytest.approx((2 * 3 / 4) ** 2, rel=0.01)
    assert abs(found["w"].mean().item()) < 5 * 1.5 / 1000
    # 20 clients: the noise on the bits of an adaptive clip has deviation 1, and 1 = 1/z^2 + 1/(2 * 1)^2
    found, _ = at_server(ClientDP(clip="adaptive", noise_multiplier=1.0), zeros, 20.0, {"clip": 0.1})
    assert found["w"].var().item() == pytest.approx((0.1 / 20) ** 2 / (1 - 1 / 4), rel=0.01)


def test_local_noise_is_each_clients_own() -> None:
    wide = Params({"w": torch.zeros(10**5, dtype=torch.float64)}, frozenset("w"))
    client = start(FedAvg(), ONE).worker.client(0, 0)
    found, _, _ = LocalDP(clip=2.0, noise_multiplier=3.0).at_client({"weights": wide}, {}, client, {})
    assert found["weights"]["w"].std().item() == pytest.approx(6, rel=0.02)


@pytest.mark.parametrize("cls", [ClientDP, LocalDP])
def test_they_pass_the_checks_of_transforms(cls: Any) -> None:
    check_transform(cls(noise_multiplier=0.5), FedBN())


def test_an_adaptive_clip_follows_the_quantile() -> None:
    """The clip is 0.1 at first. Three of four norms are above it: by the noise drawn on 1/2 - 3/2."""
    private = ClientDP(clip="adaptive", noise_multiplier=0.0, quantile=0.25)
    data = points([((0.01, 0.01), 0)], *[[((3, k), 0)] for k in range(3)])
    run = federate(FedAvg(), data, cohorts=1, lr=1.0, transforms=[private])
    drawn = torch.randn(
        (), generator=run.server.context.generator("transform 0 ClientDP", 0), dtype=torch.float64
    ).item()
    below = (-1 + 4 / 20 * drawn) / 4 + 0.5
    assert run.server.memory == {"0 ClientDP": {"clip": pytest.approx(0.1 * math.exp(-0.2 * (below - 0.25)))}}
    assert run.results[0].up == {"weights": [32] * 4, "0 ClientDP": [4] * 4}
    assert run.server.download([0]).transforms == run.server.memory
    with refused(Conflict, "transforms.clip"):
        small(Path("nowhere"), transforms=ClientDP(clip="adaptive", noise_multiplier=1.0), net=SMOOTH).run()


# ---- what is refused, and what records say


class TheFirst(Uniform):
    """Derives from a sampling of which something is proved, and chooses otherwise."""

    def choose(self, draw: CohortDraw) -> list[int]:
        return [*range(draw.size)]


def covered_methods() -> dict[str, str]:
    """Return of each method, with a net without BatchNorm, what is not covered; empty where all is."""
    found = {}
    for name, cls in METHODS.items():
        run = start(cls(), ragged(), net_of(name, SMOOTH))
        context, method = run.server.context, run.worker.method
        declared = method.uploads(context)
        pipeline = Pipeline(context.reductions(declared), 4, [ClientDP(noise_multiplier=1.0)])
        found[name] = ""
        try:
            per_client = method.overrides("download_for")
            pipeline.check(context, declared, method.download(run.server.state), per_client)
        except Conflict as error:
            found[name] = error.problem
    return found


def test_the_page_has_every_method_as_it_is() -> None:
    """Its table says yes where a method runs, and no where it is refused."""
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()
    rows = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| ")]
    said = {name.strip(): answer.strip() for names, answer in rows for name in names.split(",")}
    for name, problem in covered_methods().items():
        assert said[name].startswith("no" if problem else "yes"), (name, problem)


def test_statistics_of_batch_norm_are_refused(tmp_path: Path) -> None:
    private = ClientDP(noise_multiplier=1.0)
    for method, fine in ((FedAvg(), False), (FedBN(), True)):
        run = small(tmp_path / type(method).__name__, method=method, net=TINY, rounds=1, transforms=private)
        if fine:
            run.run()
        else:
            with refused(Conflict, "transforms"):
                run.run()


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({"transforms": [ClientDP(noise_multiplier=1.0), TopK()]}, "transforms"),
        ({"transforms": ClientDP(epsilon=8.0), "sampling": BySize()}, "transforms.epsilon"),
        ({"transforms": ClientDP(epsilon=8.0), "sampling": TheFirst()}, "transforms.epsilon"),
        ({"transforms": ClientDP(epsilon=2.0, noise_multiplier=1.0)}, "transforms.epsilon"),
        ({"transforms": LocalDP(noise_multiplier=1.0)}, "averaging"),
    ],
    ids=str,
)
def test_what_gives_no_privacy_is_refused_before_a_run(
    tmp_path: Path, settings: dict[str, Any], place: str
) -> None:
    with refused(Conflict, place) as caught:
        small(tmp_path / "run", method=FedAvg(), net=SMOOTH, participation=1.0, rounds=3, **settings).run()
    if place == "transforms.epsilon" and "sampling" not in settings:
        assert f"noise_multiplier={noise_for((Exposure('certain', 3),), 2.0, 1e-5):g}" in str(caught.value)
    assert not (tmp_path / "run").exists()


class Counted(TopK):
    """Tells the server how many clients there are."""

    sums: ClassVar[tuple[str, ...]] = ("ones",)

    def at_client(self, *given: Any) -> Any:
        sent, memory, _ = super().at_client(*given)
        return sent, memory, {"ones": 1.0}


class WithTensor(FedAvg):
    """Also uploads a tensor in the place of one that it has received."""

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        return {"weights": Mean(), "further": Mean()}

    def init_server(self, context: Context) -> State:
        return {"weights": context.initial, "further": torch.zeros(2)}


class WholeSum(FedAvg):
    """Adds up whole weights."""

    def uploads(self, context: Context) -> Mapping[str, Reduction]:
        return {"weights": Sum(replaces=True)}


@pytest.mark.parametrize(
    ("method", "transforms"),
    [
        (FedAvg(), [Counted(), ClientDP(noise_multiplier=1.0)]),
        (FedAvg(), [Counted(), LocalDP(noise_multiplier=1.0)]),
        (WithTensor(), [ClientDP(noise_multiplier=1.0)]),
        (WholeSum(), [TopK()]),
    ],
    ids=str,
)
def test_what_is_no_change_of_weights_is_refused(method: FedAvg, transforms: list[Any]) -> None:
    server = start(method, ONE).server
    declared = method.uploads(server.context)
    pipeline = Pipeline(server.context.reductions(declared), 4, transforms)
    with refused(Conflict, "transforms"):
        pipeline.check(server.context, declared, method.download(server.state), False)


def test_attackers_who_know_the_others_leave_no_guarantee(tmp_path: Path) -> None:
    private: dict[str, Any] = {"transforms": ClientDP(noise_multiplier=1.0), "sampling": Bernoulli()}
    for attack, kept in ((SignFlip(), True), (ALIE(), False)):
        epsilon, _ = small(tmp_path, attack=attack, **private).guarantee(12, 1) or (None, "")
        assert (epsilon is not None) == kept


def test_privacy_needs_noise() -> None:
    for cls in (ClientDP, LocalDP):
        with refused(Conflict, "transforms"):
            cls()


@pytest.mark.parametrize(
    ("transform", "sampling", "said"),
    [
        (ClientDP(epsilon=8.0), Bernoulli(), "-DP of clients, one client more or less"),
        (ClientDP(noise_multiplier=1.0), Uniform(), "-DP of clients, one client replaced"),
        (ClientDP(noise_multiplier=1.0), BySize(), "no guarantee: nothing is proved of sampling"),
        (ClientDP(noise_multiplier=0.0), Bernoulli(), "no guarantee: there is no noise"),
        (LocalDP(noise_multiplier=1.0), BySize(), "-local DP of all that a client uploads"),
    ],
    ids=str,
)
def test_every_record_says_what_is_guaranteed(
    tmp_path: Path, transform: Any, sampling: Any, said: str
) -> None:
    settings: dict[str, Any] = {"method": FedAvg(), "net": SMOOTH, "rounds": 3, "participation": 0.5}
    settings["averaging"] = "uniform"
    federation = small(tmp_path / "run", transforms=transform, sampling=sampling, **settings)
    federation.run()
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(said in record["privacy"] for record in records)
    spent = [record.get("figures", {}).get("epsilon") for record in records]
    summary = Result.load(tmp_path / "run").summary
    assert (summary["privacy"], summary.get("epsilon")) == (records[-1]["privacy"], spent[-1])
    if "no guarantee" in said:
        assert spent == [None] * 3
    else:
        assert spent == sorted(spent)
        assert 0 < spent[0] < spent[2]
    if isinstance(transform, ClientDP) and transform.epsilon:
        assert 7.9 < spent[2] <= 8
        noise = resumed(tmp_path / "run", {}).settings.private.noise_multiplier
        assert noise == noise_for(poisson(0.5, 3), 8.0, 1e-5)


@pytest.mark.parametrize("before", [[], [TopK()]], ids=str)
def test_a_cell_whose_noise_was_worked_out_is_the_same_cell(tmp_path: Path, before: list[Any]) -> None:
    """A table finds its runs again by the epsilon; another one is another cell."""

    def cell(epsilon: float) -> Any:
        private = ClientDP(epsilon=epsilon)
        transforms: Any = [*before, private] if before else private
        return small(tmp_path / "run", net=SMOOTH, rounds=1, transforms=transforms)

    cell(8.0).run()
    _check_same(tmp_path / "run", cell(8.0))
    with refused(InUse, tmp_path / "run"):
        _check_same(tmp_path / "run", cell(7.0))


@pytest.mark.parametrize("method", [FedBN(), Ditto()], ids=str)
def test_the_same_bytes_on_actors_and_after_a_resume(tmp_path: Path, kept_actors: None, method: Any) -> None:
    settings: dict[str, Any] = {"method": method, "net": SMOOTH, "clients": 8, "rounds": 3}
    settings |= {"sampling": Bernoulli(), "participation": 0.4}
    settings |= {"transforms": ClientDP(clip="adaptive", noise_multiplier=0.2)}
    same_bytes(tmp_path, *INLINE_AND_RAY, resumed_after=2, **settings)
