"""Methods that go by the number of rounds of a run."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rayfl import resumed
from rayfl.callbacks.callback import Callback
from rayfl.errors import BadCode, Conflict
from rayfl.methods import Cohort, Facts, FedAvg
from rayfl.testing.checks import TINY
from rayfl.training import State
from tests.support.by_hand import federate, points, start
from tests.support.federations import small
from tests.support.refusals import refused


class Cooling(FedAvg):
    """FedAvg whose server takes (rounds - round) / rounds of the mean step; clients see ``rounds``, too."""

    facts = Facts(uses_rounds=True)

    def init_server(self, context: Any) -> State:
        return {"weights": context.initial, "rounds": context.rounds}

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        share = (cohort.context.rounds - cohort.round) / cohort.context.rounds
        step = up["weights"] - server["weights"]
        return {**server, "weights": server["weights"] + share * step}


class Forgetful(Cooling):
    """One that does not say so."""

    facts = Facts()


class Sometimes(Cooling):
    """One whose options decide whether it looks at the rounds."""

    cools: bool = True

    @property
    def facts(self) -> Facts:  # type: ignore[override]
        return Facts(uses_rounds=self.cools)

    def init_server(self, context: Any) -> State:
        return {"weights": context.initial}

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        return super().aggregate(server, up, cohort) if self.cools else {**server, **up}


class Stopping(Callback):
    """Ends the first round as a signal does."""

    def after_round(self, run: Any, record: Mapping[str, Any]) -> bool:
        run.asked.set()
        return False


def test_the_method_sees_the_number_of_rounds() -> None:
    """One sample, (1, 0) of class 0, from W = 0: softmax 1/2, so that the first step of 1 is 1/2 in W[0, 0].

    Of two rounds the first one takes 2/2 of its step, the second one 1/2 of 1 / (1 + e), as logits are 1/2
    and -1/2 then.
    """
    run = federate(Cooling(), points([((1, 0), 0)]), cohorts=2, lr=1.0)
    assert run.server.state["rounds"] == 2
    assert run.server.state["weights"]["head.weight"][0, 0].item() == pytest.approx(
        0.5 + 0.5 / (1 + 2.718281828459045), abs=1e-12
    )


def test_no_method_reads_rounds_that_does_not_say_so(tmp_path: Path) -> None:
    with refused(BadCode, "context.rounds"):
        start(Forgetful(), points([((1, 0), 0)]))
    with refused(BadCode, "context.rounds"):
        small(tmp_path / "run", method=Forgetful()).run()
    assert not (tmp_path / "run").exists()


def test_a_run_is_not_resumed_with_another_number(tmp_path: Path) -> None:
    """A stopped run goes on as it was, and neither longer nor shorter."""
    small(tmp_path / "whole", method=Cooling(), rounds=2, net=TINY).run()
    small(tmp_path / "run", method=Cooling(), rounds=2, net=TINY).run([Stopping()])

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}

    before = files()
    for rounds in (1, 3):
        with refused(Conflict, "rounds"):
            resumed(tmp_path / "run", {"rounds": rounds, "quiet": True}).run()
    assert files() == before
    resumed(tmp_path / "run", {"quiet": True}).run()
    one, other = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("run", "whole"))
    assert one == other


@pytest.mark.parametrize("cools", [False, True])
def test_options_may_decide_it(tmp_path: Path, cools: bool) -> None:
    small(tmp_path / "run", method=Sometimes(cools=cools), rounds=1, net=TINY).run()
    longer = resumed(tmp_path / "run", {"rounds": 2, "quiet": True})
    with refused(Conflict, "rounds") if cools else nullcontext():
        longer.run()


def test_the_settings_that_decide_a_run() -> None:
    """They have the rounds where a method uses them, and are those of before where none does."""
    one = small(Path("unused"))
    assert "rounds" not in one.result_settings()
    assert not one.plan().depends_on_total_rounds
    one = replace(one, method=Cooling())
    assert one.result_settings()["rounds"] == one.plan().rounds == 4
    assert replace(one.plan(), rounds=7).depends_on_total_rounds
