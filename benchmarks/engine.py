"""rayfl beside a raw PyTorch loop over the same clients, and beside its peers, alternating in one run.

    python benchmarks/engine.py
    python benchmarks/engine.py --workloads W1 W3 --pairs 2 --rounds 3        # a quick look
    python benchmarks/engine.py --peer pfl-research=VENV/bin/python --peer flower=VENV/bin/python

Every run is a process of its own. ``README.md`` says what the workloads are and how to read the tables.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from measure import HERE, Run, launch, wait_for_quiet
from rich.console import Console
from rich.table import Table
from workload import WARMUP, WORKLOADS, Workload

COMPARED = ("W1", "W2", "W3", "W3-1000", "W4")
PEERS = {path.stem.replace("_", "-"): path for path in (HERE / "peers").glob("*.py")}
GOALS = {"W1": 1.00, "W2": 1.05, "W3": 1.10, "W3-1000": 1.05, "W4": 1.00}
"""Of the best loop."""
PERSONAL_BYTES = 59_134 * 4  # the personal layers of a client in the state workloads

Runs = dict[str, list[Run]]


class Benchmark:
    """Runs the contenders on the workloads, and keeps data and run folders in one scratch folder."""

    def __init__(self, scratch: Path, peers: dict[str, str], rounds: int | None) -> None:
        self.scratch = scratch
        self.rounds = rounds
        self.contenders = {
            "raw": [sys.executable, str(HERE / "raw.py")],
            "best": [sys.executable, str(HERE / "raw.py")],
            "rayfl": [sys.executable, str(HERE / "ours.py")],
            **{name: [python, str(PEERS[name])] for name, python in peers.items()},
        }
        self.runs = sum(1 for _ in scratch.glob("runs/*"))  # a kept folder may have some

    def data(self, workload: str) -> Path:
        """Return the folder with the data of a workload, written on first use."""
        folder = self.scratch / "data" / WORKLOADS[workload].data_key
        if not folder.exists():
            print(f"writing the data of {workload}", file=sys.stderr)
            unfinished = folder.with_name(f"{folder.name}-unfinished")
            script = [sys.executable, str(HERE / "workload.py"), workload, str(unfinished)]
            subprocess.run(script, check=True)
            unfinished.rename(folder)
        return folder

    def run(self, contender: str, workload: str, memory: bool = False) -> Run:
        """Run one contender once."""
        rounds = WARMUP + (self.rounds or WORKLOADS[workload].rounds)
        self.runs += 1
        folder = self.scratch / "runs" / f"{self.runs:04d}-{contender}-{workload}"
        data = "-" if contender == "rayfl" else str(self.data(workload))
        arguments = [workload, data, str(folder / "run"), str(rounds)]
        wait_for_quiet()
        arguments += ["--best"] if contender == "best" else []
        run = launch([*self.contenders[contender], *arguments], folder, memory)
        recorded = sum(run.seconds[1:])
        print(f"{workload:8} {contender:12} {run.round:8.4f} s/round", file=sys.stderr, flush=True)
        if run.clock > 1.1 * recorded + 0.3:
            print(f"note: rounds of {recorded:.2f} s took {run.clock:.2f} s on the clock", file=sys.stderr)
        return run

    def compare(self, workload: str, pairs: int) -> tuple[Runs, Runs]:
        """Run every contender ``pairs`` times in turn, and once more for the memory."""
        runs: Runs = {name: [] for name in self.contenders}
        for pair in range(pairs):
            turn = list(self.contenders)
            for name in turn if pair % 2 == 0 else reversed(turn):
                runs[name].append(self.run(name, workload))
        memory = {name: [self.run(name, workload, memory=True)] for name in self.contenders}
        return runs, memory


def spread(values: list[float], digits: int) -> str:
    """Return the median with the range in brackets."""
    low, middle, high = (f"{v:.{digits}f}" for v in (min(values), statistics.median(values), max(values)))
    return f"{middle} ({low}-{high})"


def comparison(workload: str, runs: Runs, memory: Runs) -> Table:
    """Return the table of a workload; ratios are taken within a pair."""
    spec = WORKLOADS[workload]
    table = Table(
        title=f"{workload}: {describe(spec)}; goal: rayfl at most {GOALS[workload]:.2f} of the best loop"
    )
    columns = [
        "",
        "torch",
        "ms/round",
        "of raw",
        "of the best",
        "ms/client over raw",
        "first round after s",
        "peak PSS MB",
        "Ray MB",
    ]
    for column in columns:
        table.add_column(column, justify="left" if column in ("", "torch") else "right")
    raw = runs["raw"]
    for name, own in runs.items():
        ratios = [run.round / other.round for run, other in zip(own, raw)]
        of_best = [run.round / other.round for run, other in zip(own, runs["best"])]
        over = [(run.round - other.round) / spec.cohort * 1e3 for run, other in zip(own, raw)]
        sizes = memory[name][0]
        table.add_row(
            own[0].info["name"],
            own[0].info["torch"],
            spread([run.round * 1e3 for run in own], 0),
            "1.00" if name == "raw" else spread(ratios, 2),
            "1.00" if name == "best" else spread(of_best, 2),
            "" if name == "raw" else f"{statistics.median(over):.2f}",
            spread([run.ready for run in own], 1),
            f"{sizes.peak:.0f}",
            f"{sizes.daemons:.0f}",
        )
    return table


def describe(spec: Workload) -> str:
    """Return a workload in words."""
    return f"{spec.clients} clients x {spec.samples}, {spec.cohort} a round, batches of {spec.batch_size}"


def empty_rounds(benchmark: Benchmark, pairs: int, console: Console) -> list[Run]:
    """Print what a round with 1,000 sampled clients costs where they do nothing."""
    runs = [benchmark.run("rayfl", "empty") for _ in range(pairs)]
    console.print(
        f"empty update, 1,000 sampled clients: {spread([run.round * 1e3 for run in runs], 1)} ms a round"
    )
    console.print("goal: at most 60\n")
    return runs


def state_cost(benchmark: Benchmark, console: Console) -> list[Run]:
    """Print what one more client costs in memory: twice the clients on the same data."""
    few, many = (benchmark.run("rayfl", name, memory=True) for name in ("state-1000", "state-2000"))
    kilobytes = (many.peak - few.peak) * 1e6 / 1000 / 1e3
    console.print(
        f"memory: {few.peak:.0f} MB with 1,000 clients, {many.peak:.0f} MB with 2,000 on the same data:"
    )
    console.print(
        f"{kilobytes:.0f} KB for one more client, {PERSONAL_BYTES / 1e3:.0f} of them its personal state"
    )
    console.print("goal: at most 50 KB more than that, and at most 2,500 MB with 1,000 clients\n")
    return [few, many]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", nargs="+", choices=[*COMPARED, "empty", "state"],
                        default=[*COMPARED, "empty", "state"])  # fmt: skip
    parser.add_argument("--pairs", type=int, default=5, help="times that every contender runs, in turn")
    parser.add_argument("--rounds", type=int, help="timed rounds instead of the workload's own number")
    names = ", ".join(sorted(PEERS))
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON",
                        help=f"also run a peer ({names}) with the interpreter that has it")  # fmt: skip
    parser.add_argument(
        "--scratch", type=Path, help="folder for data (1.4 GB) and run folders, kept afterwards"
    )
    parser.add_argument("--save", type=Path, help="write all figures to this JSON file")
    return parser.parse_args()


def peers_from(options: list[str]) -> dict[str, str]:
    """Read ``NAME=PYTHON``."""
    peers = {}
    for option in options:
        name, _, python = option.partition("=")
        if name not in PEERS or not Path(python).exists():
            raise SystemExit(
                f"--peer {option}: wants NAME=PYTHON, an interpreter and one of {', '.join(sorted(PEERS))}"
            )
        peers[name] = python
    return peers


def main() -> None:
    options = parse()
    console = Console(width=None if sys.stdout.isatty() else 160)
    figures: dict[str, Runs] = {}
    with tempfile.TemporaryDirectory(prefix="rayfl-benchmark-") as temporary:
        scratch = (options.scratch or Path(temporary)).resolve()
        scratch.mkdir(parents=True, exist_ok=True)
        benchmark = Benchmark(scratch, peers_from(options.peer), options.rounds)
        for workload in options.workloads:
            if workload == "empty":
                figures[workload] = {"rayfl": empty_rounds(benchmark, options.pairs, console)}
            elif workload == "state":
                figures[workload] = {"rayfl": state_cost(benchmark, console)}
            else:
                runs, memory = benchmark.compare(workload, options.pairs)
                figures[workload] = runs | {f"{name}, memory": run for name, run in memory.items()}
                console.print(comparison(workload, runs, memory))
                console.print()
    if options.save:
        plain = {
            w: {name: [asdict(run) for run in runs] for name, runs in own.items()}
            for w, own in figures.items()
        }
        options.save.write_text(json.dumps(plain, indent=1))


if __name__ == "__main__":
    main()
