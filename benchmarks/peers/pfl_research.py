"""pfl-research (Apple) on a workload: its distributed simulation, two processes over gloo, one thread each.

Usage: PYTHON pfl_research.py WORKLOAD DATA OUT ROUNDS (``engine.py --peer pfl-research=PYTHON`` calls it),
where PYTHON is the interpreter of an environment with ``pip install pfl torch``. Its data sets do not
shuffle, and stay as they are. Personal layers (W4) go through its user state storage, on disk, which two
processes need.
"""

# ruff: noqa: E402  # the launcher comes before imports that take seconds

import os
import sys

PROCESSES = 2

if "LOCAL_RANK" not in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    os.execv(sys.executable, [sys.executable, *launcher, f"--nproc_per_node={PROCESSES}", *sys.argv])

import dataclasses
from typing import Any

import numpy as np
import pfl
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.data.user_state import DiskUserStateStorage
from pfl.exception import UserNotFoundError
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.stats import MappedVectorStatistics
from torch import Tensor, nn
from workload import LR, SEED, LeNet, Rounds, Task, read_data, task_from


class Net(LeNet):
    """LeNet with the two methods that pfl asks for."""

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        return nn.functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor, eval: bool = True) -> dict[str, Weighted]:
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


class TrainOnly(FederatedAveraging):
    """Federated averaging that never evaluates; pfl would do so in its first round."""

    def get_next_central_contexts(self, model: Any, iteration: int, params: Any, *rest: Any) -> Any:
        contexts, model, metrics = super().get_next_central_contexts(model, iteration, params, *rest)
        if contexts is not None:
            contexts = tuple(dataclasses.replace(context, do_evaluation=False) for context in contexts)
        return contexts, model, metrics


class PersonalClassifier(TrainOnly):
    """FedPer: the classifier stays with the user, in pfl's storage."""

    def __init__(self, storage: DiskUserStateStorage, first: dict[str, Tensor]) -> None:
        super().__init__()
        self.storage, self.first = storage, first

    def train_one_user(
        self, initial_model_state: Any, model: Any, user_dataset: Any, central_context: Any
    ) -> Any:
        try:
            own = self.storage.load_state(user_dataset.user_id, "classifier")
        except UserNotFoundError:
            own = self.first
        with torch.no_grad():
            for name, value in own.items():
                model.variable_map[name].copy_(value)
        update, metrics = super().train_one_user(initial_model_state, model, user_dataset, central_context)
        own = {name: model.variable_map[name].detach().clone() for name in self.first}
        self.storage.save_state(own, user_dataset.user_id, "classifier")
        shared = {name: value for name, value in update.items() if name not in self.first}
        return MappedVectorStatistics(shared), metrics


class Clock(TrainingProcessCallback):
    """Records the rounds."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds

    def on_train_begin(self, *, model: Any) -> Metrics:
        self.rounds.start()
        return Metrics()

    def after_central_iteration(
        self, metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self.rounds.end()
        return False, Metrics()


def main(task: Task) -> None:
    torch.set_num_threads(1)
    np.random.seed(SEED)  # noqa: NPY002  # the generator that pfl draws from
    torch.manual_seed(SEED)
    workload = task.workload
    x, y = read_data(task.data)

    def user_data(user: str) -> PyTorchTensorDataset:
        own = slice(int(user) * workload.samples, (int(user) + 1) * workload.samples)
        return PyTorchTensorDataset(tensors=[x[own], y[own]], user_id=user)

    net = Net()
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0))
    users = [str(number) for number in range(workload.clients)]
    data = FederatedDataset(user_data, get_user_sampler("minimize_reuse", users))
    if workload.personal:
        classifier = {k: v.detach().clone() for k, v in net.named_parameters() if k.startswith("classifier.")}
        storage = DiskUserStateStorage(str(task.out.with_name("personal")))
        algorithm: FederatedAveraging = PersonalClassifier(storage, classifier)
    else:
        algorithm = TrainOnly()
    first_process = get_framework_module().distributed.global_rank == 0
    algorithm.run(
        NNAlgorithmParams(
            central_num_iterations=task.rounds,
            evaluation_frequency=10**9,
            train_cohort_size=workload.cohort,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=workload.batch_size),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Clock(Rounds(task.out))] if first_process else [],
        send_metrics_to_platform=False,
    )
    if first_process:
        task.write_info(f"pfl-research {pfl.__version__}, {PROCESSES} processes")
    torch.distributed.barrier()  # one process that leaves early makes the other abort
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(task_from(sys.argv[1:]))
