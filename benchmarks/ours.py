"""rayfl on a workload, through its Python API.

Usage: ours.py WORKLOAD DATA OUT ROUNDS (``engine.py`` calls it). DATA is not read: rayfl makes its synthetic
data itself, and ``workload.py`` has written the same.
"""

import json
import sys
from typing import Any

import torch
from workload import LR, SEED, TEST_SAMPLES, Task, task_from

from rayfl import Federation, Ray, Training, methods
from rayfl.data import IID, Synthetic
from rayfl.nets import LeNet

ACTORS = 2


class Empty(methods.FedAvg):
    """Clients return what they received, so that a round is all overhead."""

    async def local_update(self, client: Any, state: Any, down: Any) -> Any:
        return {"weights": down["weights"]}, state


def main(task: Task) -> None:
    workload = task.workload
    if workload.empty:
        method: methods.Method = Empty()
    elif workload.personal:
        method = methods.FedPer(personal="fc_stack")
    else:
        method = methods.FedAvg()
    Federation(
        method=method,
        data=Synthetic(train=workload.clients * workload.samples, test=TEST_SAMPLES, partition=IID()),
        net=LeNet(),
        clients=workload.clients,
        participation=workload.cohort / workload.clients,
        rounds=task.rounds,
        training=Training(epochs=1, batch_size=workload.batch_size, lr=LR),
        engine=Ray(actors=ACTORS),
        seed=SEED,
        eval_every=0,
        checkpoint_every=0,
        output=str(task.out),
    ).run()
    info = {"name": f"rayfl, {ACTORS} actors", "torch": torch.__version__}
    (task.out / "info.json").write_text(json.dumps(info))


if __name__ == "__main__":
    main(task_from(sys.argv[1:]))
