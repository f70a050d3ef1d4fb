"""The workloads, once for everybody who runs them: clients, data, net, local training, records.

Needs numpy and torch only, because the peers run it in environments of their own. Called as a script,
``workload.py NAME FOLDER``, it writes the data of a workload, for which it needs rayfl and its ``Synthetic``.
"""

import json
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

SHAPE = (3, 32, 32)
CLASSES = 10
LR = 0.01
SEED = 0
WARMUP = 3
TEST_SAMPLES = 2000  # nobody evaluates; rayfl's clients must have some


@dataclass(frozen=True)
class Workload:
    """One epoch of plain SGD on each client of the cohort; FedAvg, or FedPer where ``personal``."""

    clients: int
    samples: int
    """Training samples of each client."""
    cohort: int
    batch_size: int
    rounds: int
    """Timed rounds, after ``WARMUP`` others."""
    personal: bool = False
    """The fully connected layers stay with the client."""
    empty: bool = False
    """Clients return the download unchanged."""

    @property
    def data_key(self) -> str:
        """Names the data; workloads of equal keys share them."""
        return f"{self.clients}x{self.samples}"


WORKLOADS = {
    "W1": Workload(clients=100, samples=500, cohort=10, batch_size=50, rounds=20),
    "W2": Workload(clients=1000, samples=50, cohort=100, batch_size=10, rounds=10),
    "W3": Workload(clients=1000, samples=10, cohort=100, batch_size=10, rounds=12),
    "W3-1000": Workload(clients=1000, samples=10, cohort=1000, batch_size=10, rounds=4),
    "W4": Workload(clients=100, samples=500, cohort=10, batch_size=50, rounds=20, personal=True),
    "empty": Workload(clients=1000, samples=10, cohort=1000, batch_size=10, rounds=20, empty=True),
    # the same data with twice the clients: what one more client costs
    "state-1000": Workload(1000, samples=20, cohort=1000, batch_size=20, rounds=1, personal=True),
    "state-2000": Workload(2000, samples=10, cohort=2000, batch_size=20, rounds=1, personal=True),
}


class LeNet(nn.Module):
    """The net ``LeNet``: 62,006 parameters, 59,134 of them in ``classifier``, the personal part of W4."""

    def __init__(self) -> None:
        super().__init__()
        self.extractor = nn.Sequential(
            nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, CLASSES)
        )

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.extractor(x))
        return scores


def make_net() -> LeNet:
    """Return the net with the same initial weights in every process."""
    torch.manual_seed(SEED)
    return LeNet()


def train(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    x: Tensor,
    y: Tensor,
    batch_size: int,
    layout: torch.memory_format = torch.contiguous_format,
) -> None:
    """Train one shuffled epoch on a client's samples, x [n, 3, 32, 32] and y [n], in a memory layout."""
    x = x.contiguous(memory_format=layout)
    order = torch.randperm(len(y))
    for batch in order.split(batch_size):
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(net(x[batch].contiguous(memory_format=layout)), y[batch])
        loss.backward()
        optimizer.step()


def write_data(workload: Workload, folder: Path) -> None:
    """Write the training samples of rayfl's synthetic data, client after client."""
    from rayfl.data import IID, Synthetic

    train = workload.clients * workload.samples
    data = Synthetic(train=train, test=TEST_SAMPLES, partition=IID())
    federated = data.federate(workload.clients, SEED)
    order = np.concatenate([client_data.train for client_data in federated.clients])
    sizes = {len(client_data.train) for client_data in federated.clients}
    if sizes != {workload.samples} or federated.dataset.inputs.dtype != np.float32:
        raise SystemExit(f"the synthetic data do not have the workload's clients: sizes {sizes}")
    folder.mkdir(parents=True)
    np.save(folder / "x.npy", federated.dataset.inputs[order])
    np.save(folder / "y.npy", federated.dataset.labels[order])


def read_data(folder: Path) -> tuple[Tensor, Tensor]:
    """Return x [N, 3, 32, 32] and y [N], memory-mapped, so that processes share the pages."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the arrays are read-only, and nobody writes
        x, y = (torch.from_numpy(np.load(folder / name, mmap_mode="r")) for name in ("x.npy", "y.npy"))
    return x, y


class Rounds:
    """Writes one JSON line per round, as rayfl does: ``{"seconds": wall time of the round}``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._file = (folder / "engine.jsonl").open("w")
        self._started = 0.0

    def start(self) -> None:
        """The first round starts now."""
        self._started = time.perf_counter()

    def end(self) -> None:
        """A round ends now, and the next one starts."""
        now = time.perf_counter()
        self._file.write(json.dumps({"seconds": now - self._started}) + "\n")
        self._file.flush()
        self._started = now


@dataclass(frozen=True)
class Task:
    """What a script is asked for on its command line: ``SCRIPT WORKLOAD DATA OUT ROUNDS``."""

    workload: Workload
    data: Path
    """Folder that ``write_data`` wrote."""
    out: Path
    """Folder to be made, for ``engine.jsonl`` and ``info.json``."""
    rounds: int
    """All rounds, those for warming up included."""

    def write_info(self, name: str) -> None:
        """Note the versions for the table; call it after the run."""
        (self.out / "info.json").write_text(json.dumps({"name": name, "torch": torch.__version__}))


def task_from(arguments: list[str]) -> Task:
    """Read the command line of a script."""
    workload, data, out, rounds = arguments
    return Task(WORKLOADS[workload], Path(data), Path(out), int(rounds))


if __name__ == "__main__":
    write_data(WORKLOADS[sys.argv[1]], Path(sys.argv[2]))
