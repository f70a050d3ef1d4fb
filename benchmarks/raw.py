"""The same clients in a plain PyTorch loop: two processes with one thread each, and nothing around them.

Usage: raw.py WORKLOAD DATA OUT ROUNDS [--best] (``engine.py`` calls it). Each process trains half of the
cohort and adds up its weights; the parent averages. Weights travel through shared memory, a pipe says when.
Personal layers are rows of a shared matrix, so that any process can train any client.

``--best`` uses the layout channels_last and SGD's ``foreach`` form, which are faster on most CPUs: the limit
of what a loop in PyTorch can do.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, and inherited by the two processes

import sys
from collections.abc import Iterable
from multiprocessing.connection import Connection

import numpy as np
import torch
import torch.multiprocessing as mp
from torch import Tensor
from workload import LR, SEED, Rounds, Task, make_net, read_data, task_from, train

PROCESSES = 2


def flat(parameters: Iterable[Tensor]) -> Tensor:
    """Return parameters as one vector, whatever their memory layout."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters])


@torch.no_grad()
def load(vector: Tensor, parameters: list[Tensor]) -> None:
    """Copy a flat vector into parameters."""
    for parameter, values in zip(parameters, vector.split([p.numel() for p in parameters])):
        parameter.copy_(values.view_as(parameter))


def work(
    task: Task, pipe: Connection, average: Tensor, total: Tensor, personal: Tensor | None, best: bool
) -> None:
    """Train the clients that come through the pipe, from ``average``; put the sum of weights in ``total``."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED + os.getpid())
    x, y = read_data(task.data)
    net = make_net()
    layout = torch.channels_last if best else torch.contiguous_format
    net.to(memory_format=layout)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR, foreach=best)
    own = [] if personal is None else list(net.classifier.parameters())
    shared = [p for p in net.parameters() if all(p is not q for q in own)]
    samples = task.workload.samples
    pipe.send("ready")
    while (clients := pipe.recv()) is not None:
        total.zero_()
        for client in clients:
            load(average, shared)
            if personal is not None:
                load(personal[client], own)
            mine = slice(client * samples, (client + 1) * samples)
            train(net, optimizer, x[mine], y[mine], task.workload.batch_size, layout)
            with torch.no_grad():
                total += samples * flat(shared)
                if personal is not None:
                    personal[client] = flat(own)
        pipe.send("done")


def main(task: Task, best: bool) -> None:
    workload = task.workload
    net = make_net()
    shared = net.extractor if workload.personal else net
    with torch.no_grad():
        average = flat(shared.parameters()).share_memory_()
        personal = None
        if workload.personal:
            first = flat(net.classifier.parameters())
            personal = first.repeat(workload.clients, 1).share_memory_()
    totals = [torch.zeros_like(average).share_memory_() for _ in range(PROCESSES)]
    context = mp.get_context("spawn")
    pipes, processes = [], []
    for total in totals:
        pipe, end = context.Pipe()
        process = context.Process(target=work, args=(task, end, average, total, personal, best), daemon=True)
        process.start()
        pipes.append(pipe)
        processes.append(process)
    for pipe in pipes:
        pipe.recv()

    rng = np.random.default_rng(SEED)
    rounds = Rounds(task.out)
    rounds.start()
    for _ in range(task.rounds):
        cohort = rng.choice(workload.clients, workload.cohort, replace=False)
        for pipe, clients in zip(pipes, np.array_split(cohort, PROCESSES)):
            pipe.send([int(client) for client in clients])
        for pipe in pipes:
            pipe.recv()
        average.copy_(sum(totals) / (workload.cohort * workload.samples))
        rounds.end()
    task.write_info("best loop, 2 processes" if best else "raw loop, 2 processes")
    for pipe, process in zip(pipes, processes):
        pipe.send(None)
        process.join()


if __name__ == "__main__":
    main(task_from(sys.argv[1:5]), "--best" in sys.argv)
