"""The public checks pass what is right and catch what is wrong, by the name of a check."""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from rayfl.errors import UserError
from rayfl.methods import SCAFFOLD, Cohort, Ditto, Facts, FedAvg, FedBN, FedPer, FedProx, Method
from rayfl.settings import at_least, at_most
from rayfl.testing import CHECKS, check_method, method_checks, ragged
from rayfl.training import Client, Gather, Mean, Reduction, State, Sum

Returned = tuple[dict[str, Any], State]


@method_checks(FedAvg, stateless=True, plain={}, mean="samples")
def test_fedavg(check: Any) -> None:
    check()


class ByValidation(FedAvg):
    """Looks at validation data, which every client must have."""

    facts = Facts(validation="needed")

    async def local_update(self, client: Client, state: State, down: State) -> Returned:
        await client.total(lambda w, batch, extra: batch.x.sum(), down["weights"], split="val")
        return await super().local_update(client, state, down)


@pytest.mark.slow
def test_a_method_passes_on_ray(kept_actors: None) -> None:
    check_method(ByValidation, only=["runs"], ray=True)


def test_other_methods_have_no_validation_data() -> None:
    assert {len(client.val) for client in ragged().clients} == {0}
    held = ragged((5, 2), val=3).clients
    assert [len(c.train) for c in held] == [5, 2]
    assert [c.val.tolist() for c in held] == [[5, 6, 7], [14, 15, 16]]
    assert [c.test.tolist() for c in held] == [[8, 9, 10, 11], [17, 18, 19, 20]]


class Idle(FedAvg):
    async def local_update(self, client: Client, state: State, down: State) -> Returned:
        return {"weights": down["weights"]}, state


class ForgetsSeed(FedAvg):
    def init_server(self, context: Any) -> State:
        return {"weights": context.initial.map(lambda t: torch.full_like(t, 0.1))}

    async def local_update(self, client: Client, state: State, down: State) -> Returned:
        w = (await client.fit(down["weights"], client.loss, batch_size=0, epochs=1)).weights
        return {"weights": w.map(torch.sign)}, state


class HiddenState(FedAvg):
    """A velocity in an object of the process, which nobody else sees."""

    def prepare(self, context: Any) -> Any:
        return SimpleNamespace(count=0)

    async def local_update(self, client: Client, state: State, down: State) -> Returned:
        up, state = await super().local_update(client, state, down)
        client.context.prepared.count += 1
        return {"weights": up["weights"] * (1 + 0.01 * client.context.prepared.count)}, state


class HiddenServerState(FedAvg):
    """Momentum that a resumed run has lost."""

    def prepare(self, context: Any) -> Any:
        return SimpleNamespace(last=None)

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        kept = cohort.context.prepared
        new = up["weights"] if kept.last is None else 0.5 * (up["weights"] + kept.last)
        kept.last = up["weights"]
        return {"weights": new}


class ChangesUnseen(Ditto):
    """Past the version counters."""

    async def local_update(self, client: Client, state: State, down: State) -> Returned:
        up, new = await super().local_update(client, state, down)
        state["own"]["head.weight"].data += 1
        return up, new


class ControlNeverChanges(SCAFFOLD):
    async def local_update(self, client: Client, state: State, down: State) -> Returned:
        up, _ = await super().local_update(client, state, down)
        return up, state


class UnusedState(FedAvg):
    def init_client(self, client: Client) -> State:
        return {"rounds": torch.zeros(1)}

    async def local_update(self, client: Client, state: State, down: State) -> Returned:
        up, _ = await super().local_update(client, state, down)
        return up, {"rounds": torch.zeros(1) + client.round}


class KeepsNothing(FedAvg):
    """Said to keep a personal model."""


class PullsWrongly(FedProx):
    """To the initial model, and even where mu is 0."""

    async def local_update(self, client: Client, state: State, down: State) -> Returned:
        start = client.initial

        def pull(g: Any, w: Any, start: Any) -> Any:
            return g + 0.1 * (w - start)

        fitted = await client.fit(down["weights"], client.loss, start.trainable(), before_clip=pull)
        return {"weights": fitted.weights}, state


class SharesNorms(FedBN):
    def shared(self, net: Any, name: str, module: nn.Module) -> bool:
        return True


class PersonalTravels(FedPer):
    async def local_update(self, client: Client, state: State, down: State) -> Returned:
        up, state = await super().local_update(client, state, down)
        return {**up, "head": client.personal_part(client.initial)}, state

    def uploads(self, context: Any) -> Mapping[str, Reduction]:
        return {**super().uploads(context), "head": Gather()}

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        return {**server, "weights": up["weights"]}


class ForgetsWeights(FedAvg):
    def uploads(self, context: Any) -> Mapping[str, Reduction]:
        return {"weights": Gather()}

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        every = list(up["weights"].values())
        return {"weights": sum(every[1:], every[0]) / len(every)}


class NeverSends(FedAvg):
    def uploads(self, context: Any) -> Mapping[str, Reduction]:
        return {"weights": Mean(), "count": Sum()}


class OtherViews(FedAvg):
    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        return {"personal": (await super().scores(client, state, down, x))["personal"]}


class ScoresOneNumber(FedAvg):
    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        return {view: s[:, 0] for view, s in (await super().scores(client, state, down, x)).items()}


class ScoresByBatch(FedAvg):
    """Normalised over the batch."""

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        return {view: s - s.mean(0) for view, s in (await super().scores(client, state, down, x)).items()}


class ScoresAtRandom(FedAvg):
    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        return {view: s + torch.rand(1) for view, s in (await super().scores(client, state, down, x)).items()}


class DependsOnStack(FedAvg):
    """Branches by what only a single client has, which a stack cannot."""

    async def local_update(self, client: Client, state: State, down: State) -> Returned:
        def loss(w: Any, batch: Any, extra: Any) -> Tensor:
            return client.loss(w, batch) * (2.0 if batch.x.sum() > 0 else 1.0)

        return {"weights": (await client.fit(down["weights"], loss)).weights}, state


class Renames(FedAvg):
    def __init__(self, mu: float = 0.5) -> None:
        self.weight = mu


class Numbered(FedAvg):
    """Two numbered models, of which one has no clients."""

    def uploads(self, context: Any) -> Mapping[str, Reduction]:
        return {"weights": Mean(), "sum0": Sum(), "sum1": Sum()}

    def init_client(self, client: Client) -> State:
        return {"model0": client.initial, "model1": client.initial}

    async def local_update(self, client: Client, state: State, down: State) -> Returned:
        up, _ = await super().local_update(client, state, down)
        return {**up, "sum0": client.samples}, {**state, "model0": up["weights"]}

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        return {"weights": up["weights"]}


class StaysTheSame(FedAvg):
    """Its clients keep a number that never changes, and so may be forgotten."""

    def init_client(self, client: Client) -> State:
        return {"number": 3}


class AtTheEnd(FedAvg):
    """Clients keep what they have trained in the last round, and score by it alone."""

    facts = Facts(uses_rounds=True)

    def init_client(self, client: Client) -> State:
        return {"own": client.initial}

    async def local_update(self, client: Client, state: State, down: State) -> Returned:
        up, _ = await super().local_update(client, state, down)
        return up, {"own": up["weights"]} if client.round == client.context.rounds - 1 else state

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        return dict.fromkeys(self.views, client.net.eval(state["own"], x))


class OwnRate(FedAvg):
    async def local_update(self, client: Client, state: State, down: State) -> Returned:
        return {"weights": (await client.fit(down["weights"], client.loss, lr=0.05)).weights}, state


def one_check(method: Any, name: str, **intent: Any) -> None:
    """Run a single check of a method."""
    check_method(method, only=[name], **intent)


class Narrow(FedProx):
    """Allows less than the class that it derives from."""

    mu: Annotated[float, at_least(0), at_most(0.5)] = 0.1


class CountsNothing(FedAvg):
    def communication_bytes(self, client: Client, down: State, up: Mapping[str, Any]) -> Any:
        return {}, {}


RIGHT: list[tuple[Method, str, dict[str, Any]]] = [
    (ByValidation(), "runs", {}),
    (ByValidation(), "plain_sgd_with_one_client", {"plain": {}}),
    (Numbered(), "every_part_of_the_state_changes", {}),
    (Numbered(), "declared_uploads_are_sent", {}),
    (StaysTheSame(), "state_is_used", {"stateless": False}),
    (AtTheEnd(), "state_is_used", {}),
    (AtTheEnd(), "every_part_of_the_state_changes", {}),
    (OwnRate(), "trains", {}),
    (SCAFFOLD(), "state_is_used", {}),
    (FedBN(), "personal_entries_stay", {"personal": ["conv.1.*"]}),
    (Narrow(), "limits_hold", {"limits": [({"mu": 0.0}, FedAvg())]}),
    (CountsNothing(), "bytes_are_those_of_payloads", {"counts_less": True}),
]


@pytest.mark.parametrize(("method", "check", "intent"), RIGHT, ids=str)
def test_right_methods_pass(method: Method, check: str, intent: dict[str, Any]) -> None:
    one_check(method, check, **intent)


class NotForTwoNets(FedAvg):
    """Says that it takes different nets, and refuses them."""

    facts = Facts(nets="any")

    def prepare(self, context: Any) -> Any:
        if context.nets_differ:
            raise UserError("one net, please")


class KeepsNaN(FedAvg):
    """In a client's state, which nobody averages."""

    async def local_update(self, client: Client, state: State, down: State) -> Returned:
        up, _ = await super().local_update(client, state, down)
        return up, {"loss": torch.tensor(math.nan)}


class Drifts(FedAvg):
    """Each update is larger than the one before it, whoever makes it, by an attribute of the class."""

    made: ClassVar[list[int]] = []

    async def local_update(self, client: Client, state: State, down: State) -> Returned:
        up, state = await super().local_update(client, state, down)
        self.made.append(client.id)
        return {"weights": len(self.made) * up["weights"]}, state


class NotPlain(FedAvg):
    async def local_update(self, client: Client, state: State, down: State) -> Returned:
        fitted = await client.fit(down["weights"], client.loss, lr=0.5 * client.lr)
        return {"weights": fitted.weights}, state


class Misspelt(FedAvg):
    def agregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        return server


class ByTheCohort(FedAvg):
    """Trains less, the more clients have uploaded before the round."""

    def uploads(self, context: Any) -> Mapping[str, Reduction]:
        return {"weights": Mean(), "asked": Sum(before=True)}

    async def before_round(self, client: Client, state: State, down: State) -> dict[str, Any]:
        return {"asked": 1.0}

    async def local_update(self, client: Client, state: State, down: State) -> Returned:
        w = (await client.fit(down["weights"], client.loss, lr=0.1 / down["before"]["asked"])).weights
        return {"weights": w}, state


class ByTheCohortWrongly(ByTheCohort):
    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        return {"weights": up["weights"] * (1 / len(cohort.ids))}


@pytest.mark.parametrize("check", ["means_have_their_weights", "exchange_keeps_nothing", "resumes"])
def test_methods_may_have_an_exchange(check: str) -> None:
    """What clients do may depend on who is asked before the round."""
    one_check(ByTheCohort, check)


class CountsExchanges(FedAvg):
    """Uploads before a round how often it was asked, by an attribute of its class."""

    asked: ClassVar[list[int]] = []

    def uploads(self, context: Any) -> Mapping[str, Reduction]:
        return {"weights": Mean(), "asked": Sum(before=True)}

    async def before_round(self, client: Client, state: State, down: State) -> dict[str, Any]:
        self.asked.append(client.id)
        return {"asked": torch.tensor(float(len(self.asked)))}


class SpoilsExchange(CountsExchanges):
    async def before_round(self, client: Client, state: State, down: State) -> dict[str, Any]:
        return {"asked": torch.tensor(math.nan)}


class RemembersScoring(FedAvg):
    """Trains less after every scoring, by what the process has prepared."""

    def prepare(self, context: Any) -> Any:
        return []

    async def local_update(self, client: Client, state: State, down: State) -> Returned:
        up, state = await super().local_update(client, state, down)
        share = 0.5 ** len(client.context.prepared)
        return {"weights": down["weights"] + share * (up["weights"] - down["weights"])}, state

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        client.context.prepared.append(client.id)
        return await super().scores(client, state, down, x)


class CountsMore(FedAvg):
    """Counts a byte of the download too many."""

    def communication_bytes(self, client: Client, down: State, up: Mapping[str, Any]) -> Any:
        received, sent = super().communication_bytes(client, down, up)
        return {key: n + 1 for key, n in received.items()}, sent


class NeedsPersonalising(FedAvg):
    async def personalise(self, client: Client, state: State, down: State) -> State:
        return {"own": down["weights"]}

    async def scores(self, client: Client, state: State, down: State, x: Tensor) -> dict[str, Tensor]:
        scores = await client.eval(state["own"], x)
        return {"personal": scores, "global": scores}


WRONG: list[tuple[type[Method], str, dict[str, Any]]] = [
    (NeverSends, "declared_uploads_are_sent", {}),
    (Misspelt, "runs", {}),
    (Idle, "trains", {}),
    (ForgetsSeed, "seed_matters", {}),
    (DependsOnStack, "stacked_equals_loop", {}),
    (HiddenState, "processes_do_not_matter", {}),
    (HiddenServerState, "resumes", {}),
    (ChangesUnseen, "values_handed_in_stay", {}),
    (ControlNeverChanges, "every_part_of_the_state_changes", {}),
    (UnusedState, "state_is_used", {}),
    (KeepsNothing, "state_is_used", {"stateless": False}),
    (PullsWrongly, "limits_hold", {"limits": [({"mu": 0.0}, FedAvg())]}),
    (SharesNorms, "personal_entries_stay", {"personal": ["conv.1.*"]}),
    (PersonalTravels, "personal_entries_stay", {}),
    (ForgetsWeights, "means_have_their_weights", {"mean": "samples"}),
    (OtherViews, "views_are_scored", {}),
    (ScoresOneNumber, "views_are_scored", {}),
    (ScoresByBatch, "inputs_are_scored_alone", {}),
    (ScoresAtRandom, "scores_change_nothing", {}),
    (Renames, "options_are_kept", {}),
    (NotForTwoNets, "different_nets_work_or_are_refused", {}),
    (NotPlain, "plain_sgd_with_one_client", {"plain": {}}),
    (CountsExchanges, "exchange_keeps_nothing", {}),
    (SpoilsExchange, "exchange_keeps_nothing", {}),
    (NeedsPersonalising, "scores_without_personalising", {}),
    (RemembersScoring, "scores_change_nothing", {}),
    (ByTheCohortWrongly, "means_have_their_weights", {"mean": "samples"}),
    (KeepsNaN, "runs", {}),
    (Drifts, "means_have_their_weights", {}),
    (CountsMore, "bytes_are_those_of_payloads", {"counts_less": True}),
    (CountsNothing, "bytes_are_those_of_payloads", {}),
]


@pytest.mark.parametrize(("method", "check", "intent"), WRONG, ids=lambda x: getattr(x, "__name__", None))
def test_a_wrong_method_is_caught(method: type[Method], check: str, intent: dict[str, Any]) -> None:
    """By the check that is made for it, as one case."""
    with pytest.raises(AssertionError, match=f"^{method.__name__} fails the check {check}: "):
        one_check(method, check, **intent)


@pytest.mark.parametrize("apart", [[], ["head.*"]])
def test_what_is_meant_to_travel_names_its_remedy(apart: list[str]) -> None:
    refused = pytest.raises(AssertionError, match=r"apart=\['head\.bias', 'head\.weight'\]")
    with nullcontext() if apart else refused:
        one_check(PersonalTravels, "personal_entries_stay", apart=apart)


def test_check_method_names_the_first_that_fails() -> None:
    with pytest.raises(AssertionError, match=r"^Idle fails the check trains: states are the same"):
        check_method(Idle)


class Exempt(Idle):
    facts = Facts(unchecked={"trains": "it does nothing"})


def test_a_method_says_which_check_does_not_hold() -> None:
    """It is left out and reported; pytest shows its case as skipped, with the reason."""
    assert check_method(Exempt, only=["trains", "runs"]) == {"trains": "it does nothing"}
    cases = {case.id: case for case in method_checks(Exempt).args[1]}
    assert cases.keys() == {f"Exempt-{name}" for name in CHECKS}
    assert [mark.kwargs["reason"] for mark in cases["Exempt-trains"].marks] == ["it does nothing"]
    assert not cases["Exempt-runs"].marks

    class Wrong(FedAvg):
        facts = Facts(unchecked={"trians": "no reason"})

    for method, only in ((Wrong, []), (FedAvg, ["trians"])):
        with pytest.raises(AssertionError, match="no check 'trians'"):
            check_method(method, only=only)
