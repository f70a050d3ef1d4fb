"""pfl-research's CIFAR-10 benchmark by pfl-research itself: two processes over gloo, one thread each.

Usage: PYTHON cifar10_pfl_research.py --data FOLDER --rounds N --seed S --out FOLDER (``cifar10.py --peer
PYTHON`` calls it), where PYTHON is the interpreter of an environment with ``pip install pfl torch``.
"""

# ruff: noqa: I001  # the first import starts both processes, before others that take seconds

from peers.pfl_research import PROCESSES, Clock

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pfl
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from workload import Rounds

CLIENTS, COHORT, BATCH, LR, EVERY = 1000, 50, 10, 0.1, 10
SCORED = 500  # images at once; all 10,000, as on its GPUs, take more than twice as long on a CPU


class Net(nn.Module):
    """The net of the benchmark, with the two methods that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Dropout(0.25), nn.Flatten(), nn.Linear(12_544, 128), nn.ReLU(),
            nn.Dropout(0.5), nn.Linear(128, 10),
        )  # fmt: skip
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        self.eval() if eval else self.train()
        return nn.functional.cross_entropy(self.layers(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor, eval: bool = True) -> dict[str, Weighted]:
        self.eval() if eval else self.train()
        return {"accuracy": Weighted(float((self.layers(x).argmax(1) == y).sum()), len(y))}


class Every(CentralEvaluationCallback):
    """Scores the model after rounds 10, 20 and so on, and not before the first one."""

    accuracy = 0.0

    def on_train_begin(self, *, model: Any) -> Metrics:
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        stop, metrics = super().after_central_iteration(
            aggregate_metrics, model, central_iteration=central_iteration + 1
        )
        for name, value in metrics.to_simple_dict().items():
            if "accuracy" in name.lower():
                self.accuracy = float(value)
        return stop, metrics


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, kind in (("--data", Path), ("--out", Path), ("--rounds", int), ("--seed", int)):
        parser.add_argument(name, type=kind, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    np.random.seed(options.seed)  # noqa: NPY002  # the generator that pfl draws from
    torch.manual_seed(options.seed)
    x, y, test_x, test_y = (
        torch.from_numpy(np.load(options.data / f"{part}_{kind}.npy"))
        for part in ("train", "test")
        for kind in ("x", "y")
    )
    order = torch.from_numpy(np.random.permutation(len(y)))  # noqa: NPY002
    users = dict(enumerate((x[rows], y[rows]) for rows in order.chunk(CLIENTS)))
    del x
    net = Net()
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0))
    data = FederatedDataset.from_slices(users, get_user_sampler("random", list(users)))
    evaluation = NNEvalHyperParams(local_batch_size=SCORED)
    scored = Every(Dataset(raw_data=[test_x, test_y]), evaluation, EVERY)
    first_process = get_framework_module().distributed.global_rank == 0
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=options.rounds,
            evaluation_frequency=EVERY,
            train_cohort_size=COHORT,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByUser()]),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH),
        evaluation,
        callbacks=[scored, *([Clock(Rounds(options.out))] if first_process else [])],
        send_metrics_to_platform=False,
    )
    if first_process:
        info = {"name": f"pfl-research {pfl.__version__}, {PROCESSES} processes", "torch": torch.__version__}
        (options.out / "info.json").write_text(json.dumps(info | {"accuracy": scored.accuracy}))
    torch.distributed.barrier()  # one process that leaves early makes the other abort
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
