"""Kills a client actor of a federation every few seconds, beside the same federation undisturbed.

    python benchmarks/chaos.py                             # every 20 s for 30 minutes
    python benchmarks/chaos.py --every 10 --minutes 2      # a quick look

Both federations run at the same time on this machine, each on two actors of its own. When the time is over
they are stopped as Ctrl-C does it, and each is resumed without kills up to the same round, some checkpoints
after the one at which the faster one was stopped: their records and checkpoints must have the same bytes. The
slowdown is the ratio of the rounds that they had made when they were stopped.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
from failures import ACTORS, final_bytes, processes

import rayfl
from rayfl import Federation, Ray, Training
from rayfl.data import Dirichlet, Synthetic
from rayfl.methods import Ditto
from rayfl.nets import LeNet

UNENDING = 1_000_000  # rounds
CHECKPOINT_EVERY = 2
PARTS = ("undisturbed", "disturbed")


def federate(folder: Path, rounds: int) -> None:
    """Begin a federation in this process, or go on with it."""
    if (folder / "config.yaml").exists():
        rayfl.resumed(folder, {"rounds": rounds}).run()
        return
    Federation(
        method=Ditto(),
        data=Synthetic(train=12_000, test=1_200, partition=Dirichlet(alpha=1.0), val_fraction=0.1),
        net=LeNet(),
        clients=60,
        participation=0.1,
        rounds=rounds,
        training=Training(lr=0.05, batch_size=20, momentum=0.5),
        engine=Ray(actors=ACTORS, recoveries=UNENDING),
        eval_every=5,
        checkpoint_every=CHECKPOINT_EVERY,
        loggers=[],
        quiet=True,
        output=str(folder),
    ).run()


def started(folder: Path, rounds: int) -> psutil.Popen:
    """Start a process that runs or resumes the federation of a folder, with Ray of its own."""
    command = [sys.executable, __file__, "--only", str(folder), "--rounds", str(rounds)]
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    with folder.with_suffix(".log").open("a") as log:
        return psutil.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def lines(folder: Path, name: str) -> list[dict[str, object]]:
    """Return the complete lines of a record; none before it is there."""
    with suppress(FileNotFoundError):
        text = (folder / name).read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    return []


def rounds_made(folder: Path) -> int:
    return len(lines(folder, "metrics.jsonl"))


def ended(process: psutil.Popen, folder: Path) -> None:
    """Wait for the end of a process.

    Raises:
        SystemExit: it failed; the message has the end of its log.
    """
    if process.wait() != 0:
        tail = folder.with_suffix(".log").read_text(errors="replace")[-3000:]
        raise SystemExit(f"{tail}\nThe federation in {folder} failed with exit code {process.returncode}.")


def strike(process: psutil.Popen, dice: random.Random) -> bool:
    """Kill one client actor of a federation, if it has one."""
    with suppress(psutil.NoSuchProcess):
        if found := processes("ray::ClientActor", process):
            dice.choice(found).kill()
            return True
    return False


def disturb(running: dict[str, psutil.Popen], folders: dict[str, Path], every: float, minutes: float) -> int:
    """Kill actors of one federation until the time is over, and return how many."""
    dice = random.Random(0)
    while not all(rounds_made(folder) for folder in folders.values()):
        if any(process.poll() is not None for process in running.values()):
            return 0
        time.sleep(0.2)
    kills = 0
    began = shown = time.monotonic()
    while (now := time.monotonic()) < began + 60 * minutes:
        if any(process.poll() is not None for process in running.values()):
            break
        if now >= began + (kills + 1) * every:
            kills += strike(running["disturbed"], dice)
        if now >= shown + 60:
            shown = now
            made = ", ".join(f"{part} {rounds_made(folders[part])}" for part in PARTS)
            print(f"{(now - began) / 60:.0f} min: {kills} kills; rounds: {made}", flush=True)
        time.sleep(0.2)
    return kills


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--every", type=float, default=20.0, help="seconds between two kills (20)")
    made.add_argument("--minutes", type=float, default=30.0, help="how long (30)")
    made.add_argument("--only", type=Path, help=argparse.SUPPRESS)
    made.add_argument("--rounds", type=int, help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.only:
        federate(options.only, options.rounds)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        folders = {part: Path(scratch, part) for part in PARTS}
        running = {part: started(folder, UNENDING) for part, folder in folders.items()}
        try:
            kills = disturb(running, folders, options.every, options.minutes)
            count = {part: rounds_made(folder) for part, folder in folders.items()}
            for part, process in running.items():
                process.send_signal(signal.SIGINT)
                ended(process, folders[part])
            rounds = max(rounds_made(folder) for folder in folders.values()) + 3 * CHECKPOINT_EVERY
            for part, folder in folders.items():
                running[part] = started(folder, rounds)
                ended(running[part], folder)
        finally:
            for process in running.values():
                with suppress(psutil.NoSuchProcess):
                    process.terminate()
        engine = lines(folders["disturbed"], "engine.jsonl")
        lost = [line for line in engine if "lost" in line]
        whole, other = (final_bytes(folders[part]) for part in PARTS)
        different = sorted(name for name in whole | other if whole.get(name) != other.get(name))
    print(f"kills: {kills}, after which the run went back {len(lost)} times")
    print(f"rounds when stopped: undisturbed {count['undisturbed']}, disturbed {count['disturbed']}")
    print(f"slowdown: {count['undisturbed'] / max(1, count['disturbed']):.2f}")
    print(f"after {rounds} rounds: {'OTHER BYTES in ' + ', '.join(different) if different else 'same bytes'}")
    return 1 if different or not kills else 0


if __name__ == "__main__":
    sys.exit(main())
