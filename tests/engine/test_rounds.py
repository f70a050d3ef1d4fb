"""Methods that go by the number of rounds of a run."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rayfl import Ray, resumed
from rayfl.callbacks.callback import Callback
from rayfl.errors import BadCode, Conflict
from rayfl.methods import Cohort, Facts, FedAvg
from rayfl.training import State
from tests.support.by_hand import federate, points, start
from tests.support.federations import bytes_of_run, small
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
    """Ends the second round as a signal does."""

    def after_round(self, run: Any, record: Mapping[str, Any]) -> bool:
        if record["round"] == 1:
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
    small(tmp_path / "whole", method=Cooling()).run()
    stopped = small(tmp_path / "run", method=Cooling())
    stopped.run([Stopping()])
    files = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    for rounds in (3, 5):
        with refused(Conflict, "rounds"):
            resumed(tmp_path / "run", {"rounds": rounds, "quiet": True}).run()
    assert files == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    resumed(tmp_path / "run", {"quiet": True}).run()
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == (
        tmp_path / "whole" / "metrics.jsonl"
    ).read_bytes()


def test_options_may_decide_it(tmp_path: Path) -> None:
    small(tmp_path / "run", method=Sometimes(cools=False), rounds=2).run()
    resumed(tmp_path / "run", {"rounds": 3, "quiet": True}).run()
    small(tmp_path / "cooling", method=Sometimes(), rounds=2).run()
    with refused(Conflict, "rounds"):
        resumed(tmp_path / "cooling", {"rounds": 3, "quiet": True}).run()


def test_the_settings_that_decide_a_run() -> None:
    """They have the rounds where a method uses them, and are those of before where none does."""
    one = small(Path("unused"))
    assert "rounds" not in one.result_settings()
    assert not one.plan().depends_on_total_rounds
    one = replace(one, method=Cooling())
    assert one.result_settings()["rounds"] == one.plan().rounds == 4
    assert replace(one.plan(), rounds=7).depends_on_total_rounds


def test_actors_see_it_too(tmp_path: Path, kept_actors: None) -> None:
    for name, engine in (("inline", small(tmp_path).engine), ("ray", Ray(actors=2))):
        small(tmp_path / name, method=Cooling(), engine=engine, rounds=2).run()
    assert bytes_of_run(tmp_path / "inline") == bytes_of_run(tmp_path / "ray")
