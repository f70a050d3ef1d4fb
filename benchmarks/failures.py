"""Kills processes of federations at seeded moments, and counts after which of them the records show nothing.

Each federation is killed at several times. A moment is a phase of a round, and a time within it; the victims
are some of the client actors, the server, or all of them. A kill is survived if the federation ends, by
itself, with the bytes of an undisturbed one; all kills of a federation that does not are lost.
"""

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray

from rayfl import Federation, Inline, Ray, Training
from rayfl.data import Dirichlet, Synthetic
from rayfl.engine import Engine
from rayfl.engine.ray_workers import RayWorkers
from rayfl.engine.session import Session
from rayfl.methods import Ditto
from rayfl.nets import LeNet

PHASES = {
    "training": (Session, "train"),
    "aggregation": (RayWorkers, "call"),
    "evaluation": (Session, "evaluate"),
    "checkpoint": (Session, "save"),
    "recovery": (Session, "restore"),
}
LONGEST = {"training": 0.3, "aggregation": 0.02, "evaluation": 0.3, "checkpoint": 0.1, "recovery": 3.0}
"""Seconds after the beginning of a phase within which a kill comes; it may be over by then."""
ACTORS = 2


def federation(folder: Path, engine: Engine, rounds: int) -> Federation:
    return Federation(
        method=Ditto(),
        data=Synthetic(train=900, test=240, partition=Dirichlet(alpha=1.0), val_fraction=0.1),
        net=LeNet(),
        clients=12,
        participation=0.5,
        rounds=rounds,
        training=Training(lr=0.05, batch_size=20, momentum=0.5),
        engine=engine,
        checkpoint_every=3,
        loggers=[],
        quiet=True,
        output=str(folder),
    )


def final_bytes(folder: Path) -> dict[str, bytes]:
    """Return what a run leaves that must not depend on how it was carried out."""
    kept = [folder / name for name in ("metrics.jsonl", "partition.json", "summary.json")]
    kept += list((folder / "checkpoints").iterdir())
    return {file.name: file.read_bytes() for file in kept}


@dataclass
class Kill:
    """One kill: who dies, so many seconds after a phase has begun; and what was under way then."""

    phase: str
    delay: float
    who: str
    number: int
    happened: str = ""

    @classmethod
    def draw(cls, dice: random.Random) -> "Kill":
        phase = dice.choices(list(PHASES), [4, 2, 2, 2, 1])[0]
        who = dice.choices(["actors", "server", "all"], [6, 2, 1])[0]
        return cls(phase, dice.uniform(0, LONGEST[phase]), who, dice.randint(1, ACTORS))


class Killer:
    """Carries out kills one after the other, each in its phase."""

    def __init__(self, kills: list[Kill], dice: random.Random) -> None:
        self._waiting = list(kills)
        self._dice = dice
        self._phase = "records"
        self._timers: list[threading.Timer] = []
        self._before = {phase: getattr(*place) for phase, place in PHASES.items()}
        self._quiet = 0

    def __enter__(self) -> "Killer":
        for phase, place in PHASES.items():
            setattr(*place, self._watched(phase, self._before[phase]))
        return self

    def __exit__(self, *exception: object) -> None:
        for timer in self._timers:
            timer.cancel()
        for phase, place in PHASES.items():
            setattr(*place, self._before[phase])

    def _watched(self, phase: str, original: Any) -> Any:
        def call(watched: Any, *arguments: Any, **options: Any) -> Any:
            if phase == "aggregation" and arguments[1] != "aggregate":
                return original(watched, *arguments, **options)
            before, self._phase = self._phase, phase  # the server is asked to aggregate within the training
            due = [kill for kill in self._waiting if kill.phase == phase]
            at_start = phase == "recovery" and len(watched.workers) > 0
            if self._quiet and phase != "recovery":
                self._quiet -= 1
            elif due and not at_start:
                self._waiting.remove(due[0])
                self._aim(due[0])
            try:
                return original(watched, *arguments, **options)
            finally:
                self._phase = before

        return call

    def _aim(self, kill: Kill) -> None:
        self._quiet = self._dice.randint(0, 20)  # phases until the next kill may come
        self._timers.append(threading.Timer(kill.delay, self._strike, (kill,)))
        self._timers[-1].daemon = True
        self._timers[-1].start()

    def _strike(self, kill: Kill) -> None:
        found = {"actors": processes("ray::ClientActor"), "server": processes("ray::ServerActor")}
        while self._phase == "recovery" and not any(found.values()):  # they are only just being started
            found = {"actors": processes("ray::ClientActor"), "server": processes("ray::ServerActor")}
        if kill.who == "actors":
            chosen = self._dice.sample(found["actors"], min(kill.number, len(found["actors"])))
        else:
            chosen = found["server"] + (found["actors"] if kill.who == "all" else [])
        for process in chosen:
            with suppress(psutil.NoSuchProcess):
                process.kill()
                kill.happened = self._phase


def processes(title: str, root: psutil.Process | None = None) -> list[psutil.Process]:
    """Return a run's actors of a kind; Ray names processes by them, started by ``root`` (this one)."""
    found = []
    for process in (root or psutil.Process()).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if " ".join(process.cmdline()).startswith(title):
                found.append(process)
    return sorted(found, key=lambda process: process.pid)


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("--kills", type=int, default=50, help="kills in all")
    made.add_argument("--together", type=int, default=5, help="kills of one federation")
    made.add_argument("--rounds", type=int, default=12)
    made.add_argument("--seed", type=int, default=0)
    options = made.parse_args()
    dice = random.Random(options.seed)
    ray.init(address="local", num_cpus=ACTORS, include_dashboard=False,
             log_to_driver=False, logging_level="ERROR")  # fmt: skip
    survived: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        federation(Path(scratch, "whole"), Inline(), options.rounds).run()
        expected = final_bytes(Path(scratch, "whole"))
        done = number = 0
        while done < options.kills:
            kills = [Kill.draw(dice) for _ in range(min(options.together, options.kills - done))]
            folder = Path(scratch, str(number))
            began = time.monotonic()
            problem = ""
            with Killer(kills, dice):
                try:
                    federation(folder, Ray(actors=ACTORS, recoveries=20), options.rounds).run()
                except Exception as error:
                    problem = f"{type(error).__name__}: {error}".splitlines()[0]
            same = not problem and final_bytes(folder) == expected
            lines = [json.loads(line) for line in (folder / "engine.jsonl").read_text().splitlines()]
            back = [line["back_to"] for line in lines if "lost" in line]
            struck = [kill for kill in kills if kill.happened]
            for kill in struck:
                (survived if same else lost)[f"{kill.who} in {kill.happened}"] += 1
            done += max(1, len(struck))  # it ends, even if kills should come too late
            number += 1
            print(
                f"federation {number}: {len(struck)} kills, went back to rounds {back}, "
                f"{'same bytes' if same else problem or 'OTHER BYTES'}, {time.monotonic() - began:.0f} s",
                flush=True,
            )
    print(f"\n{'killed':<26} {'survived':>8} {'lost':>5}")
    for what in sorted(survived | lost):
        print(f"{what:<26} {survived[what]:>8} {lost[what]:>5}")
    print(f"{'all':<26} {survived.total():>8} {lost.total():>5}")
    ray.shutdown()
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
