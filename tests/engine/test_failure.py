"""A federation that loses processes goes on without them, and its records do not show it.

Processes kill themselves with SIGKILL in the middle of their work; pretended ones in this process are lost.
"""

import errno
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

from rayfl import Inline, Ray, Training, UserError, evaluation, resumed
from rayfl.engine.base import ClusterLost
from rayfl.engine.worker import Worker
from rayfl.methods import Cohort, Ditto, FedAvg
from rayfl.running.recovery import disk_full_as_error
from rayfl.running.result import Result
from rayfl.training import Client, State
from tests.support.federations import bytes_of_run, small
from tests.support.workers import PretendWorkers, pretend

ray: Any = pytest.importorskip("ray")

from rayfl.engine import ray_workers  # noqa: E402
from rayfl.engine.ray_workers import RayWorkers  # noqa: E402
from rayfl.engine.session import Session  # noqa: E402
from rayfl.errors import Shortage  # noqa: E402
from tests.support.refusals import refused  # noqa: E402

ROUNDS = 5


def everything(folder: Path) -> dict[str, bytes]:
    """The final bytes of a run, but for its settings: methods that die have options of their own."""
    return bytes_of_run(folder, settings=False) | {"summary.json": (folder / "summary.json").read_bytes()}


def losses(folder: Path) -> list[int]:
    """The rounds to which a run has gone back."""
    lines = [json.loads(line) for line in (folder / "engine.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines if "round" in line] == list(range(ROUNDS))
    assert all("an actor died: " in line["lost"] for line in lines if "lost" in line)
    return [line["back_to"] for line in lines if "lost" in line]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("undisturbed")
    small(folder / "run", method=Ditto(), rounds=ROUNDS).run()
    return everything(folder / "run")


# ---- processes that die


class Mortal(Ditto):
    """Ditto whose processes die, once each: they kill themselves while training and aggregating, and lose
    their GPU while scoring.

    Args:
        folder: where a file says who has died; "": their code only exits, every time.
        training: the round in which a client actor dies.
        aggregating: the round in which the server dies.
        scoring: the round in which a client actor dies.
    """

    def __init__(self, folder: str, training: int = -1, aggregating: int = -1, scoring: int = -1) -> None:
        super().__init__()
        self.folder = folder
        self.training = training
        self.aggregating = aggregating
        self.scoring = scoring

    def die(self, phase: str) -> None:
        if not self.folder:
            sys.exit(3)
        sign = Path(self.folder, phase)
        if not sign.exists():
            sign.touch()
            if phase == "scoring":
                raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
            os.kill(os.getpid(), signal.SIGKILL)

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        result = await super().local_update(client, state, down)
        if client.round == self.training:
            self.die("training")
        return result

    def aggregate(self, server: State, up: Mapping[str, Any], cohort: Cohort) -> State:
        if cohort.round == self.aggregating:
            self.die("aggregating")
        return super().aggregate(server, up, cohort)

    async def scores(self, client: Client, state: State, down: State, x: Any) -> dict[str, Any]:
        if client.round == self.scoring:
            self.die("scoring")
        return await super().scores(client, state, down, x)


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The processes of the server and the workers after every start and every loss, by their numbers."""
    found: list[list[int]] = []
    start = RayWorkers.start

    def recording(self: RayWorkers, allow_fewer: bool) -> None:
        start(self, allow_fewer)
        found.append([where["pid"] for where in (self.server_where, *self.where)])

    monkeypatch.setattr(RayWorkers, "start", recording)
    return found


@pytest.mark.usefixtures("ray_runtime")
@pytest.mark.parametrize(
    ("deaths", "back_to", "server_lives"),
    [
        ({"training": 2}, [2], [True]),
        pytest.param(
            {"training": 1, "aggregating": 2, "scoring": 4},
            [0, 2, 4],
            [True, False, True],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_process_that_dies_in_the_middle_of_its_work(
    tmp_path: Path,
    undisturbed: dict[str, bytes],
    alive: list[list[int]],
    capsys: pytest.CaptureFixture[str],
    deaths: dict[str, int],
    back_to: list[int],
    server_lives: list[bool],
) -> None:
    """The one that lives goes on."""
    method = Mortal(str(tmp_path), **deaths)
    small(tmp_path / "run", method=method, engine=Ray(actors=1), rounds=ROUNDS).run()
    assert [before[0] == after[0] for before, after in pairwise(alive)] == server_lives
    assert [before[1] != after[1] for before, after in pairwise(alive)] == server_lives
    assert everything(tmp_path / "run") == undisturbed
    assert losses(tmp_path / "run") == back_to
    assert capsys.readouterr().err.count("going on from the checkpoint after 2 rounds") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("ray_runtime")
def test_processes_killed_while_they_evaluate_and_write_a_checkpoint(
    tmp_path: Path, undisturbed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server and an actor in the second evaluation, and all of them in the third checkpoint."""
    due: list[slice] = []
    get = RayWorkers.get

    def striking(workers: RayWorkers, *arguments: Any) -> Any:
        while due:
            for where in (workers.server_where, *workers.where)[due.pop()]:
                os.kill(where["pid"], signal.SIGKILL)
        return get(workers, *arguments)

    def strike(phase: str, number: int, victims: slice) -> None:
        original, calls = getattr(Session, phase), count(1)

        def call(session: Session, *arguments: Any) -> Any:
            if next(calls) == number:
                due.append(victims)
            return original(session, *arguments)

        monkeypatch.setattr(Session, phase, call)

    monkeypatch.setattr(RayWorkers, "get", striking)
    strike("evaluate", 2, slice(2))
    strike("save", 3, slice(None))
    small(tmp_path / "run", method=Ditto(), engine=Ray(actors=2), rounds=ROUNDS).run()
    assert everything(tmp_path / "run") == undisturbed
    assert len(losses(tmp_path / "run")) == 2


# ---- hosts that come and go


@pytest.fixture
def new_host(ray_runtime: str) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts another host's Ray processes, of 4 logical CPUs, on this machine."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        options = ["--address", ray_runtime, "--num-cpus", "4", "--object-store-memory", "100000000"]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *options]
        environment = os.environ | {
            "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"
        }  # actors die with it at once
        command += ["--disable-usage-stats"]
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
        while sum(node["Alive"] for node in ray.nodes()) < 2:
            with suppress(subprocess.TimeoutExpired):
                pytest.fail(f"the host has not started: {started[-1].wait(0.02)}")
        return started[-1]

    yield start
    for host in started:
        host.terminate()
        host.wait()


@pytest.mark.slow
def test_hosts_that_come_and_go(
    tmp_path: Path,
    undisturbed: dict[str, bytes],
    new_host: Callable[[], subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host that joins gets two actors, clients move there, and come back when it leaves.

    What they upload is added up there, in rounds 2 and, when the host leaves, 3.
    """
    monkeypatch.setattr(ray_workers, "HOST_CHECK_SECONDS", 0.0)
    calls: list[str] = []
    call = RayWorkers.call

    def counting(self: RayWorkers, k: int, name: str, *arguments: Any, **options: Any) -> Any:
        calls.append(name)
        return call(self, k, name, *arguments, **options)

    monkeypatch.setattr(RayWorkers, "call", counting)
    hosts: list[subprocess.Popen[bytes]] = []
    train = Session.train

    def changing(self: Session, round: int, *arguments: Any) -> Any:
        if round == 0:
            hosts.append(new_host())
        if round == 2 and self.workers.joining:
            ray.get([up for _, up in self.workers.joining])
        if round == 3 and len(self.workers) == 4:
            hosts[0].terminate()
            hosts[0].wait()
        return train(self, round, *arguments)

    monkeypatch.setattr(Session, "train", changing)
    small(tmp_path / "run", method=Ditto(), engine=Ray(cpus_per_actor=2), rounds=ROUNDS).run()
    assert everything(tmp_path / "run") == undisturbed
    assert losses(tmp_path / "run") == [2]
    assert calls.count("add_up") == 2
    actors = [len(line["actors"]) for line in records(tmp_path / "run", "engine.jsonl") if "actors" in line]
    assert actors == [2, 2, 2, 2, 2]  # of the rounds as they were replayed


# ---- what the driver does when a session reports a loss


def flaky(folder: Path, *lost: tuple[str, int], **settings: Any) -> None:
    """Run on workers that lose these calls."""
    given = {name: settings.pop(name) for name in ("at_loss", "gone") if name in settings}
    small(folder, rounds=ROUNDS, engine=pretend(lost=lost, **given), **settings).run()


OPERATIONS = ("download", "train", "aggregate", "evaluate", "save", "restore", "hand_over", "states_of")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_any_sequence_of_losses(tmp_path: Path, undisturbed: dict[str, bytes], seed: int) -> None:
    draw = random.Random(seed)
    lost = draw.sample([(name, number) for name in OPERATIONS for number in range(1, 9)], 8)
    flaky(tmp_path / "run", *lost, method=Ditto())
    assert everything(tmp_path / "run") == undisturbed
    assert losses(tmp_path / "run")


@pytest.mark.parametrize(
    ("recoveries", "told"),
    [(0, "before train 5. "), (1, "before train 7, 2 times since the last checkpoint. ")],
)
def test_a_process_that_dies_again_and_again_ends_the_run(
    tmp_path: Path, undisturbed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, recoveries: int, told: str
) -> None:
    """With one line, and its records say which losses it has survived."""
    monkeypatch.setattr(PretendWorkers, "recoveries", recoveries)
    lost = ("train", 5), ("train", 7)
    with refused(Shortage) as end:
        flaky(tmp_path / "run", *lost, method=Ditto())
    assert told in str(end.value)
    assert str(end.value).endswith(f"go on with --resume {tmp_path / 'run'}")
    assert "\n" not in str(end.value)
    assert (tmp_path / "run" / "engine.jsonl").read_text().count('"lost"') == recoveries
    resumed(tmp_path / "run").run()
    assert everything(tmp_path / "run") == undisturbed


def test_without_checkpoints_everything_is_replayed(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    lost = ("aggregate", 2), ("train", 9)
    flaky(tmp_path / "run", *lost, method=Ditto(), checkpoint_every=0)
    assert losses(tmp_path / "run") == [0, 0]
    for name in ("metrics.jsonl", "summary.json"):
        assert (tmp_path / "run" / name).read_bytes() == undisturbed[name]


def test_what_else_the_records_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores that are kept between rounds, and TensorBoard's events, go back too."""
    from tensorboard.summary.writer import event_file_writer

    # Files of one second are read in the order of their names, where 10 comes before 9.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    settings: dict[str, Any] = {
        "method": Ditto(),
        "protocol": evaluation.FediOS(),
        "participation": 0.3,
        "loggers": ["tensorboard"],
    }
    small(tmp_path / "whole", rounds=ROUNDS, **settings).run()
    flaky(tmp_path / "run", ("aggregate", 2), ("save", 3), ("train", 12), **settings)
    assert everything(tmp_path / "run") == everything(tmp_path / "whole")
    assert losses(tmp_path / "run")
    assert loss_events(tmp_path / "run") == loss_events(tmp_path / "whole")


def loss_events(folder: Path) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars("train/loss")]


def test_a_loss_while_the_newest_checkpoint_is_damaged(
    tmp_path: Path, undisturbed: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    def flip_a_bit() -> None:
        newest = max((tmp_path / "run" / "checkpoints").glob("manifest-*.json"))
        name = json.loads(newest.read_text())["manifest"]["server"]
        content = bytearray(newest.with_name(name).read_bytes())
        content[len(content) // 2] ^= 4
        newest.with_name(name).write_bytes(content)

    flaky(tmp_path / "run", ("aggregate", 5), at_loss=flip_a_bit, method=Ditto())
    assert everything(tmp_path / "run") == undisturbed
    assert losses(tmp_path / "run") == [2]
    assert "does not match its name; going back to the checkpoint before it" in capsys.readouterr().err


@pytest.mark.parametrize("gone", [False, True])
def test_a_loss_while_a_checkpoint_is_loaded(
    tmp_path: Path,
    undisturbed: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    gone: bool,
) -> None:
    """It is loaded again, unless Ray is gone by then."""

    def lose() -> None:
        if gone and losing.call_count == 2:
            monkeypatch.setattr(PretendWorkers, "check", MagicMock(side_effect=ClusterLost("gone")))

    losing = MagicMock(side_effect=lose)
    with refused(Shortage) if gone else nullcontext() as end:
        flaky(tmp_path / "run", ("aggregate", 4), ("restore", 1), at_loss=losing, method=Ditto())
    assert losing.call_count == 2
    if end is not None:
        assert str(end.value).endswith(f"go on with --resume {tmp_path / 'run'}")
        return
    assert everything(tmp_path / "run") == undisturbed
    assert losses(tmp_path / "run") == [2]
    assert capsys.readouterr().err.count("going on from the checkpoint after 2 rounds") == 2


@pytest.mark.parametrize(("stops", "gone"), [(True, False), (False, True), (True, True)])
def test_a_loss_that_ends_the_run(
    tmp_path: Path, undisturbed: dict[str, bytes], stops: bool, gone: bool
) -> None:
    """After a signal, the round that was lost need not be replayed; and without Ray it cannot be.

    Both come where a service manager sends SIGTERM to Ray's processes, too: the newest checkpoint is the end.
    """
    stop = partial(os.kill, os.getpid(), signal.SIGTERM) if stops else lambda: None
    with nullcontext() if stops else refused(Shortage) as end:
        flaky(tmp_path / "run", ("aggregate", 4), at_loss=stop, gone=gone, method=Ditto())
    lost = [line["lost"] for line in records(tmp_path / "run", "engine.jsonl") if "lost" in line]
    if end is None:
        assert not Result.load(tmp_path / "run").complete
        assert [text.startswith("Ray's raylet on this host is gone") for text in lost] == [gone]
    else:
        assert "Ray's raylet on this host is gone, and with it all processes of the run" in str(end.value)
        assert str(end.value).endswith(f"last checkpoint intact: go on with --resume {tmp_path / 'run'}")
        assert lost == []
    resumed(tmp_path / "run").run()
    assert everything(tmp_path / "run") == undisturbed


# ---- clients that fail


class Unsaid(Exception):
    """Its text cannot be made."""

    def __str__(self) -> str:
        raise KeyError("text")


RAISED = {
    "raise": ValueError("no such luck\nreally"),
    "unsaid": Unsaid(),
    "cuDNN": RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    "memory": torch.OutOfMemoryError("CUDA out of memory. GPU 0 has a total capacity of 15 GiB."),
}


class Failing(FedAvg):
    """Client 2 fails in round 1.

    Args:
        how: what it does: raises one of ``RAISED``, ``exit`` or ``interrupt``; or asks for memory that there
            is not, of ``torch`` or ``numpy``.
        signs: a folder with a file for each failure; where it is given, there are no more than ``times``.
        times: how often it fails.
    """

    def __init__(self, how: str = "raise", signs: str = "", times: int = 1) -> None:
        self.how = how
        self.signs = signs
        self.times = times

    async def local_update(self, client: Client, state: State, down: State) -> tuple[dict[str, Any], State]:
        result = await super().local_update(client, state, down)
        if client.id == 2 and client.round == 1:
            self.fail()
        return result

    def fail(self) -> None:
        if self.signs:
            failed = len([*Path(self.signs).iterdir()])
            if failed == self.times:
                return
            Path(self.signs, str(failed)).touch()
        if self.how in RAISED:
            raise RAISED[self.how]
        if self.how == "exit":
            sys.exit("enough")
        if self.how == "torch":
            torch.empty(2**50)
        if self.how == "numpy":
            np.empty(2**55)
        raise KeyboardInterrupt


EVERYONE: dict[str, Any] = {"clients": 4, "participation": 1.0, "rounds": 3, "on_bad_update": "drop"}


def records(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.mark.parametrize("execution", ["loop", "stacked"])
def test_a_client_that_raises_is_dropped(
    tmp_path: Path, execution: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a stack, the others are trained without it."""
    small(tmp_path / "run", method=Failing(), engine=Inline(execution=execution), **EVERYONE).run()
    lines = records(tmp_path / "run")
    assert [line["dropped"] for line in lines] == [[], [2], []]
    assert lines[1]["loss"][2] is None
    assert lines[1]["steps"][2] == lines[1]["up"]["weights"][2] == 0
    assert all(lines[1]["steps"][i] for i in (0, 1, 3))
    reasons = [line["dropped"] for line in records(tmp_path / "run", "engine.jsonl")]
    assert reasons == [{}, {"2": "has raised ValueError: no such luck"}, {}]
    assert "round 1: the update of client 2 is dropped: has raised ValueError" in capsys.readouterr().err


@pytest.mark.parametrize(("times", "place"), [(1, "client 0, 1, 2, 3"), (2, "client 2")])
@pytest.mark.parametrize("engine", [Inline(), Inline(execution="stacked", stack=4)], ids=["loop", "stacked"])
def test_what_does_not_come_again_is_no_clients(
    tmp_path: Path, engine: Inline, times: int, place: str
) -> None:
    """When four clients train together, when the one trains alone, and not when that is repeated."""
    (tmp_path / "signs").mkdir()
    method = Failing("cuDNN", str(tmp_path / "signs"), times)
    with refused(Shortage, place) as caught:
        small(tmp_path / "run", method=method, engine=engine, **EVERYONE).run()
    assert "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED" in str(caught.value)
    assert [line["dropped"] for line in records(tmp_path / "run")] == [[]]


class Wandering(Failing):
    """Fails at another place when it is repeated, with an error of the same class."""

    def fail(self) -> None:
        failed = len([*Path(self.signs).iterdir()])
        Path(self.signs, str(failed)).touch()
        if failed < 2:  # with the others, and alone
            raise RuntimeError("here")
        raise RuntimeError("there")


def test_the_same_class_of_error_at_another_place_confirms_nothing(tmp_path: Path) -> None:
    (tmp_path / "signs").mkdir()
    method = Wandering(signs=str(tmp_path / "signs"))
    with refused(Shortage, "client 2") as caught:
        small(tmp_path / "run", method=method, engine=Inline(), **EVERYONE | {"clients": 3}).run()
    assert "the same at" in str(caught.value)
    assert "test_failure.py" in str(caught.value)


class FailingDitto(Failing, Ditto):
    """Has states."""


def test_a_repeated_update_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(batch_size=10, momentum=0.9, optimiser_state="kept")
    settings: dict[str, Any] = EVERYONE | {"method": FailingDitto(), "training": training}
    small(tmp_path / "run", **settings).run()
    monkeypatch.setattr(Worker, "_other_when_repeated", lambda *arguments: "")
    small(tmp_path / "not", **settings).run()
    assert everything(tmp_path / "run") == everything(tmp_path / "not")


@pytest.mark.parametrize(
    ("execution", "how", "place", "word"),
    [
        ("stacked", "memory", "the GPU", "15 GiB"),
        ("loop", "torch", "the memory", "you tried to allocate"),
        ("loop", "numpy", "the memory", "Unable to allocate"),
    ],
)
def test_faults_of_a_machine_are_no_clients(
    tmp_path: Path, execution: Any, how: str, place: str, word: str
) -> None:
    """They end the run before its round is over, and nobody is left out."""
    with refused(Shortage, place) as caught:
        small(tmp_path / "run", method=Failing(how), engine=Inline(execution=execution), **EVERYONE).run()
    assert word in str(caught.value)
    assert [line["dropped"] for line in records(tmp_path / "run")] == [[]]


TOLD = {
    "unsaid": "has raised Unsaid: an error whose text cannot be made",
    "exit": "has raised RuntimeError: the method's code would end the process (SystemExit: enough)",
    "interrupt": "has raised RuntimeError: the method's code would end the process (KeyboardInterrupt: )",
}


@pytest.fixture(scope="module")
def raised(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a run leaves in which client 2 has been dropped in round 1."""
    folder = tmp_path_factory.mktemp("raised")
    small(folder / "run", method=Failing(), **EVERYONE).run()
    return everything(folder / "run")


@pytest.mark.usefixtures("kept_actors")
@pytest.mark.parametrize("how", TOLD)
@pytest.mark.parametrize("engine", [Inline(), Ray(actors=1)], ids=["Inline", "Ray"])
def test_a_client_that_would_end_the_process_or_has_no_words_is_dropped(
    tmp_path: Path, raised: dict[str, bytes], how: str, engine: Any
) -> None:
    """As if it had raised anything else."""
    small(tmp_path / "run", method=Failing(how), engine=engine, **EVERYONE).run()
    assert everything(tmp_path / "run") == raised
    reasons = [line["dropped"] for line in records(tmp_path / "run", "engine.jsonl")]
    assert reasons == [{}, {"2": TOLD[how]}, {}]


@pytest.mark.parametrize(("how", "word"), [("exit", "would end the process"), ("raise", "no such luck")])
def test_a_client_that_raises_stops_the_run_by_name(tmp_path: Path, how: str, word: str) -> None:
    with pytest.raises((RuntimeError, ValueError), match=word) as raised:
        small(tmp_path / "run", method=Failing(how), **(EVERYONE | {"on_bad_update": "stop"})).run()
    assert raised.value.__notes__ == ["raised while client 2 trained in round 1"]
    assert isinstance(raised.value.__cause__, SystemExit) == (how == "exit")


@pytest.mark.usefixtures("kept_actors")
@pytest.mark.parametrize("engine", [Inline(), Ray(actors=1)], ids=["Inline", "Ray"])
@pytest.mark.parametrize("where", ["aggregating", "scoring"])
def test_code_that_would_end_the_process_elsewhere(tmp_path: Path, where: str, engine: Any) -> None:
    """It is an error, and not a loss that is replayed."""
    with pytest.raises(RuntimeError, match=r"would end the process \(SystemExit: 3\)"):
        small(tmp_path / "run", method=Mortal("", **{where: 0}), engine=engine).run()


# ---- disks


@pytest.mark.parametrize("writes", [12, 20])  # of the first checkpoint, of the second
def test_a_disk_that_is_full_for_a_while(
    tmp_path: Path, undisturbed: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """The run stops, naming the file; with room again it goes on."""
    done = 0

    def full(file: int) -> None:
        nonlocal done
        done += 1
        if done >= writes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        says = r"cannot be written: No space left on device; earlier checkpoints are intact"
        with pytest.raises(UserError, match=says):
            small(tmp_path / "run", method=Ditto(), rounds=ROUNDS).run()
    assert not list((tmp_path / "run" / "checkpoints").glob("*.tmp"))
    resumed(tmp_path / "run").run()
    assert everything(tmp_path / "run") == undisturbed


def test_a_full_disk_that_ends_a_run_says_how_to_go_on(tmp_path: Path) -> None:
    """By what there is of the run; other errors stay what they are."""
    for way_on in ("start the run again", f"go on with --resume {tmp_path}"):
        with refused(Shortage) as full, disk_full_as_error(tmp_path):
            raise ValueError from OSError(errno.ENOSPC, "")
        assert str(full.value).endswith(f"make room; then {way_on}")
        (tmp_path / "config.yaml").touch()
    with pytest.raises(KeyError), disk_full_as_error(tmp_path):
        raise KeyError
