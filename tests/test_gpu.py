"""On a GPU: the same results as on the CPU, in both executions, and who keeps what where."""

import json
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from rayfl import Inline, Training
from rayfl.data import IID, Synthetic
from rayfl.engine.base import Plan
from rayfl.engine.server import Server
from rayfl.engine.worker import Worker
from rayfl.methods import METHODS, FedAvg
from rayfl.nets import CNNB, LeNet
from rayfl.record.folder import read_config
from rayfl.training import examples
from rayfl.training.state import take_apart
from tests.methods.cases import net_of
from tests.support.by_hand import Run, assert_same, ragged
from tests.support.federations import bytes_of_run, small

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
]

DATA = ragged()
COHORTS = [[0, 1, 2, 3], [1, 3], [0, 1, 2, 3]]
WITHOUT_NORM = ("FedHEAL", "PFedMe")
"""Below BatchNorm, FedHEAL goes by signs of steps that are zero but for rounding; PFedMe's rounding grows."""


def plan(name: str, device: str, execution: Any = "loop") -> Plan:
    """A plan in float64 that uses every part of the update."""
    training = Training(batch_size=8, lr=0.1, momentum=0.5, clip=5.0, weight_decay=1e-3, precision="float64")
    engine = Inline(execution=execution, device=device)
    net = LeNet() if name in WITHOUT_NORM else CNNB()
    return Plan(METHODS[name](), net_of(name, net), training, 3, engine)


def run(made: Plan) -> Run:
    """Three rounds, some of them with a part of the clients."""
    server_side = Plan(**{**vars(made), "method": deepcopy(made.method)})
    found = Run(Worker(made, DATA), Server(server_side, DATA))
    for cohort in COHORTS:
        found.round(cohort, ("test",))
    return found


# ---- the same numbers


@pytest.mark.parametrize("name", METHODS)
def test_loop_stack_and_cpu_agree(name: str) -> None:
    """To 1e-9 in float64, with clients of 12, 22, 16 and 5 samples in batches of 8."""
    cpu, loop, stacked = (
        run(plan(name, *where)) for where in (("cpu", "loop"), ("cuda", "loop"), ("cuda", "stacked"))
    )
    assert_same(loop.values(), cpu.values(), 1e-9)
    assert_same(stacked.values(), loop.values(), 1e-9)
    for a, b, c in zip(cpu.results, loop.results, stacked.results):
        assert (a.ids, a.steps, a.up, a.down) == (b.ids, b.steps, b.up, b.down)
        assert (a.ids, a.steps, a.up, a.down) == (c.ids, c.steps, c.up, c.down)
        assert a.loss == pytest.approx(b.loss, rel=1e-9)
        assert a.loss == pytest.approx(c.loss, rel=1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_scores_agree(name: str) -> None:
    scores = []
    for device in ("cpu", "cuda"):
        found = run(plan(name, device))
        scores.append(found.worker.evaluate(3, found.server.download(range(4)), [range(4)], ["test"]))
    assert scores[0].keys() == scores[1].keys()
    for i in scores[0]:
        on_cpu, on_gpu = scores[0][i]["test"], scores[1][i]["test"]
        assert {v: s.score for v, s in on_cpu.items()} == {v: s.score for v, s in on_gpu.items()}
        assert {v: s.loss for v, s in on_cpu.items()} == pytest.approx({v: s.loss for v, s in on_gpu.items()})


def test_float32_learns(tmp_path: Path) -> None:
    """``auto`` is stacked execution on the GPU; chance is 0.1."""
    settings: dict[str, Any] = {"data": Synthetic(train=2000, test=400, partition=IID()), "clients": 4}
    federation = small(tmp_path / "run", engine=Inline(), participation=1.0, **settings)
    result = federation.run()
    recorded = read_config(result.folder)["engine"]["init_args"]
    assert (recorded["device"], recorded["execution"]) == ("cuda", "stacked")
    assert result.figure > 0.8


@pytest.mark.parametrize("execution", ["loop", "stacked"])
@pytest.mark.parametrize("name", METHODS)
def test_deterministic_kernels_give_the_same_bytes_again(tmp_path: Path, name: str, execution: Any) -> None:
    for folder in ("a", "b"):
        engine, net = Inline(device="cuda", execution=execution, deterministic=True), net_of(name, CNNB())
        small(tmp_path / folder, method=METHODS[name](), net=net, engine=engine, rounds=2).run()
    assert bytes_of_run(tmp_path / "a") == bytes_of_run(tmp_path / "b")
    assert not torch.are_deterministic_algorithms_enabled()


# ---- what is where


def test_the_pool_is_on_the_gpu_where_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    resident = run(plan("FedAvg", "cuda"))
    assert resident.worker.examples._inputs.is_cuda
    assert resident.worker.examples._labels.is_cuda
    monkeypatch.setattr(examples, "_can_fit", lambda images, device: False)
    streamed = run(plan("FedAvg", "cuda"))
    assert not streamed.worker.examples._inputs.is_cuda
    assert_same(streamed.values(), resident.values(), 1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_state_is_on_the_cpu_between_rounds(name: str) -> None:
    found = run(plan(name, "cuda", "stacked"))
    for state in (dict(found.worker.states), found.server.state):
        assert {str(t.device) for t in take_apart(state)[1].values()} <= {"cpu"}


@pytest.fixture
def uncapped(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("rayfl.engine.process._replaceable", False)  # which an actor changes
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def test_an_actor_may_fill_its_share_of_the_memory_only(uncapped: None) -> None:
    pytest.importorskip("ray")
    from rayfl.engine.actors import ClientActor

    total = torch.cuda.get_device_properties(0).total_memory
    ClientActor("run", plan("FedAvg", "cuda"), DATA, gpu_share=0.1)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(total // 8, dtype=torch.uint8, device="cuda")
    sized = torch.empty(1, device="meta")  # has a size without taking memory
    assert examples._can_fit(sized.expand(int(0.01 * total) // 4), torch.device("cuda"))
    assert not examples._can_fit(sized.expand(int(0.06 * total) // 4), torch.device("cuda"))  # more than half


def test_two_actors_on_one_gpu(tmp_path: Path) -> None:
    """A cluster of its own, which finds the real GPU; both actors get half of it."""
    pytest.importorskip("ray")
    folders = {}
    for engine in ("Inline", "Ray"):
        folders[engine] = tmp_path / engine
        federation = small(folders[engine], method=FedAvg(), participation=1.0, rounds=2)
        options = ["--engine", engine, "--engine.device", "cuda", "--engine.stack", "3"]
        if engine == "Ray":
            options += ["--engine.actors", "2", "--engine.gpus_per_actor", "0.5"]
        command(federation, tmp_path, folders[engine], options)
    lines = [(f / "metrics.jsonl").read_text().splitlines() for f in folders.values()]
    for one, other in zip(*lines, strict=True):
        inline, on_ray = json.loads(one), json.loads(other)
        assert inline["cohort"] == on_ray["cohort"]
        assert inline["loss"] == pytest.approx(on_ray["loss"], rel=1e-6)
    (last,) = (folders["Ray"] / "engine.jsonl").read_text().splitlines()[-1:]
    assert len(json.loads(last)["actors"]) == 2


def command(federation: Any, folder: Path, output: Path, options: list[str]) -> None:
    """Run a federation's configuration from the command line, in float64."""
    from rayfl.settings.description import dump_config

    (folder / "config.yaml").write_text(dump_config(federation))
    given = ["--config", str(folder / "config.yaml"), "--output", str(output), *options]
    given += ["--training.precision", "float64"]
    done = subprocess.run([sys.executable, "-m", "rayfl.run", *given], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
