"""A simulator of faults: a federation whose processes, messages and disk fail at moments drawn from a seed.

Everything is in one process and in one thread, so a seed fails every time in the same way. Session, recovery,
checkpoints and records are rayfl's own. Only two things under them are replaced: what carries calls to
workers (:class:`SimulatedWorkers`), and what changes files (:class:`SimulatedDisk`). A seed passes if the run
ends with the bytes of an undisturbed one, resumed as often as its driver dies.

    python -m tests.support.faults --seeds 10000
    python -m tests.support.faults --seed 17
"""

from __future__ import annotations

import argparse
import errno
import os
import random
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import IO, Any
from unittest import mock

import torch

from rayfl.callbacks import page
from rayfl.data import FederatedData, Synthetic
from rayfl.engine.base import SERVER, ClusterLost, Engine, Plan, Workers, WorkersLost
from rayfl.engine.client_states import ClientStates
from rayfl.engine.inline import Inline
from rayfl.engine.server import Server
from rayfl.engine.session import Session
from rayfl.engine.worker import Worker
from rayfl.errors import UserError
from rayfl.federation import Federation
from rayfl.methods import Ditto
from rayfl.record import folder as records
from rayfl.record.checkpoint import Checkpoints
from rayfl.record.history import CLIENTS, CONFIG, METRICS, PARTITION, SUMMARY
from rayfl.running import run as running
from rayfl.running.settings import RunSettings
from rayfl.system import files
from rayfl.system.files import Disk
from rayfl.system.log import log
from rayfl.training import Training
from tests.support.workers import pretend

LIVES = 40
"""A driver that has been started so often without an end hangs."""
MOST_WORKERS = 3
_known: dict[Any, Any] = {}  # of the one federation that is run: what takes long to make


class Killed(BaseException):
    """The simulated process that is running has died. Nothing may catch it, and nothing may clean up."""


class DriverDied(Killed):
    """The driver has died, and with it, as far as this run is concerned, everything."""


class World:
    """What happens to a federation, as a seed decides.

    Args:
        seed: of everything.

    Attributes:
        dice: from which everything is drawn.
        happened: every fault so far, in words.
        saved: rounds of the newest checkpoint that was written completely.
    """

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.left = self.dice.randint(1, 6)
        self.rate = 10 ** self.dice.uniform(-2.5, -1)
        self.eager = self.dice.random()
        self.disk = SimulatedDisk(self)
        self.happened: list[str] = []
        self.saved = 0
        self.begin()

    def begin(self) -> None:
        """Begin another life of the driver."""
        self.workers: SimulatedWorkers | None = None
        self.dead = self.full = self.gone = self.gave_up = False

    def step(self, where: str, file: bool = False) -> None:
        """Let a fault happen here, or not; everything that the federation does calls this."""
        if self.dead:
            raise DriverDied
        workers = self.workers
        if workers is not None:
            workers.check_alive()
        if not self.left or self.dice.random() >= self.rate:
            return
        kinds = ["driver", "power", "process", "process", "processes", "cluster", *(["full"] * 3 * file)]
        kind = self.dice.choice(kinds)
        self.left -= 1
        self.happened.append(f"{kind} at {where}")
        if kind in ("driver", "power"):
            self.dead = True
            raise DriverDied(kind)
        if kind == "full":
            self.full = True
        elif kind == "cluster":
            self.gone = True
        elif workers is not None:
            workers.kill(1 if kind == "process" else self.dice.randint(1, MOST_WORKERS + 1))
            workers.check_alive()


# ---- processes


@dataclass(eq=False)
class Reference:
    """Stands for what an operation returns: its content when it is done, or why there is none."""

    content: Any = None
    error: Exception | None = None
    owner: Process | None = None
    done: bool = False


@dataclass(eq=False)
class Process:
    """A server or a worker, and the operations that it has still to carry out, in their order."""

    name: str
    does: Any
    alive: bool = True
    calls: deque[tuple[str, list[Any], list[Reference]]] = field(default_factory=deque)
    results: list[Reference] = field(default_factory=list)


class SimulatedWorkers(Workers):
    """Processes that share nothing, and whose operations are carried out in an order that is drawn.

    Args:
        plan: the federation.
        data: the data.
        world: what happens to them.
    """

    def __init__(self, plan: Plan, data: FederatedData, world: World) -> None:
        self.recoveries = world.dice.randint(0, 4)
        self.world, self._plan, self._data = world, plan, data
        self._running: Process | None = None
        self._server: Process | None = None
        self._processes: list[Process] = []
        self._threads_before = torch.get_num_threads()
        world.workers = self

    def __len__(self) -> int:
        return len(self._processes)

    def start(self, allow_fewer: bool) -> None:
        """Start a drawn number of workers, where as many do not live; some may die meanwhile."""
        self._server = self._server or Process("server", self._fresh(Server))
        wanted = self.world.dice.randint(1, MOST_WORKERS)
        while len(self) < wanted:
            self._add_worker()
        self.world.step("start")
        if not all(process.alive for process in self._all()):
            raise WorkersLost("a process died at the start")

    def _fresh(self, kind: type[Server] | type[Worker]) -> Any:
        """Return a server or worker as it is at first."""
        plan = replace(self._plan, method=deepcopy(self._plan.method))
        fresh = copy(_once(kind, kind, plan, self._data))
        if isinstance(fresh, Worker):
            fresh.states = ClientStates()
        return fresh

    def _add_worker(self) -> None:
        name = f"worker {len(self._processes)}"
        self._processes.append(Process(name, self._fresh(Worker)))

    def _all(self) -> list[Process]:
        return [*([self._server] if self._server else []), *self._processes]

    def host_of(self, k: int) -> int:
        """Return the host of a worker: there are two, and another one for the server."""
        return k if k == SERVER else k % 2

    def add_workers(self) -> None:
        """Take in another worker now and then."""
        if len(self) < MOST_WORKERS and self.world.dice.random() < 0.1:
            self._add_worker()

    def call(self, k: int, name: str, *arguments: Any, returns: int = 1) -> Any:
        """Put an operation into the queue of its process."""
        process = self._server if k == SERVER else self._processes[k]
        assert process is not None
        references = [Reference(owner=process) for _ in range(returns)]
        process.results += references
        sent = [x if isinstance(x, Reference) else deepcopy(x) for x in arguments]
        if process.alive:
            process.calls.append((name, sent, references))
        else:
            _fail(references, WorkersLost(f"{process.name} died"))
        while self.world.dice.random() < self.world.eager and self._advance():
            pass
        return references if returns > 1 else references[0]

    def get(self, references: Sequence[Any], usual: float | None = None) -> list[Any]:
        """Carry operations out until those are done that are waited for, or one of them has failed."""
        while True:
            self.check()
            failed = [r.error for r in references if r.error is not None]
            if failed:
                if isinstance(failed[0], WorkersLost):
                    raise WorkersLost(str(failed[0]))
                raise failed[0]
            if all(r.done for r in references):
                return [_value(r) for r in references]
            assert self._advance(), "everybody waits"

    def _advance(self) -> bool:
        """Carry out the next operation of a process that is drawn from those that can go on."""
        ready = [p for p in self._all() if p.calls and all(_is_here(x) for x in p.calls[0][1])]
        if not ready:
            return False
        process = self.world.dice.choice(ready)
        name, sent, references = process.calls[0]
        self.world.step(f"before {process.name} does {name}")
        if not process.alive:
            return True
        process.calls.popleft()
        failed = [x.error for x in sent if isinstance(x, Reference) and x.error is not None]
        if failed:
            _fail(references, failed[0])
            return True
        self._running = process
        try:
            arguments = [_value(x) if isinstance(x, Reference) else x for x in sent]
            found = getattr(process.does, name)(*arguments)
            if name == "train":  # times would decide who trains where
                seconds = {group: self.world.dice.uniform(0.5, 2) for group in found[1].seconds}
                found[1].seconds = seconds
            self.world.step(f"after {process.name} has done {name}")
            for reference, value in zip(references, found if len(references) > 1 else [found], strict=True):
                reference.content, reference.done = deepcopy(value), True
        except DriverDied:
            raise
        except Killed:
            _fail(references, WorkersLost(f"{process.name} died in {name}"))
        except Exception as error:
            _fail(references, error)
        finally:
            self._running = None
        return True

    def check_alive(self) -> None:
        """Stop the process that is running, if it has been killed."""
        if self._running is not None and not self._running.alive:
            raise Killed

    def kill(self, count: int) -> None:
        """Kill some processes; with their host, what they have returned may be lost, too."""
        alive = [process for process in self._all() if process.alive]
        for process in self.world.dice.sample(alive, min(count, len(alive))):
            process.alive = False
            self.world.happened[-1] += f", {process.name}"
            of_host = self.world.dice.random() < 0.5
            for reference in process.results:
                if of_host or not reference.done:
                    _fail([reference], WorkersLost(f"{process.name} died"))
            process.calls.clear()

    def check(self) -> None:
        """See that the simulated cluster is there."""
        if self.world.gone:
            raise ClusterLost("the cluster is gone")

    def keep_survivors(self) -> None:
        """Keep the processes that live, after what they were asked for before; now and then none."""
        self.check()
        if self.world.dice.random() < 0.3:  # as where a host is lost
            self.stop()
            return
        while self._advance():
            pass
        self._processes = [process for process in self._processes if process.alive]
        if self._server is not None and not self._server.alive:
            self._server = None

    def stop(self) -> None:
        """Stop all processes."""
        self._server = None
        self._processes = []

    def close(self) -> None:
        """Stop all processes, and give this one its threads back."""
        self.stop()
        torch.set_num_threads(self._threads_before)


def _fail(references: Sequence[Reference], error: Exception) -> None:
    for reference in references:
        reference.content, reference.error, reference.done = None, error, True


def _value(sent: Any) -> Any:
    return deepcopy(sent.content if isinstance(sent, Reference) else sent)


def _is_here(sent: Any) -> bool:
    return sent.done if isinstance(sent, Reference) else True


class SimulatedSession(Session):
    """A session that remembers what it has promised to keep, and how it ended."""

    def __init__(self, plan: Plan, data: FederatedData, workers: SimulatedWorkers) -> None:
        self._world = workers.world
        super().__init__(plan, data, workers)

    def save(self, folder: Path, round: int, *arguments: Any, **options: Any) -> None:
        """Save, and note that it is done."""
        super().save(folder, round, *arguments, **options)
        self._world.saved = round

    def clear_loss(self, lost: WorkersLost) -> None:
        """Clear up, and note whether that was the last loss that the run survives."""
        try:
            super().clear_loss(lost)
        except UserError:
            self._world.gave_up = True
            raise


# ---- disk


@dataclass(eq=False)
class File:
    """A file, whatever its name is.

    Attributes:
        synced: what a power failure leaves of it for certain.
        last: its content when it lost its name.
    """

    synced: bytes = b""
    last: bytes = b""


class SimulatedDisk(Disk):
    """A disk on which names and contents are lost in a power failure, unless they were synced.

    Args:
        world: what happens to it.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._now: dict[Path, File] = {}
        self._kept: dict[Path, File] = {}
        self._folders: set[Path] = set()
        self._created = 0

    def _step(self, what: str, path: Path, grows: bool = False) -> None:
        self._world.step(f"{what} {path.name}", grows)
        if self._world.full and grows:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def create(self, path: Path) -> IO[bytes]:
        """Open a new file; its name is no chance."""
        self._step("creating", path, grows=True)
        self._created += 1
        temporary = path.with_name(f"{path.name}.{self._created:08x}.tmp")
        self._now[temporary] = File()
        return temporary.open("xb")

    def open_end(self, path: Path) -> IO[bytes]:
        """Open a file to write at its end."""
        self._step("opening", path)
        self._now.setdefault(path, File())
        return super().open_end(path)

    def write(self, file: IO[bytes], content: bytes) -> int:
        """Write everything, or where a fault is due, only a part of it."""
        path = Path(file.name)
        try:
            self._step("writing", path, grows=True)
        except (Killed, OSError):
            with suppress(OSError):
                file.write(content[: self._world.dice.randint(0, len(content))])
                file.flush()
            raise
        return super().write(file, content)

    def sync(self, file: IO[bytes]) -> None:
        """Keep the content of a file."""
        path = Path(file.name)
        self._step("syncing", path, grows=True)
        file.flush()
        self._now[path].synced = path.read_bytes()
        self._step("after syncing", path)

    def rename(self, old: Path, new: Path) -> None:
        """Rename, for now."""
        self._step("renaming", old)
        if new in self._now:
            self._now[new].last = new.read_bytes()
        super().rename(old, new)
        self._now[new] = self._now.pop(old)
        self._step("after renaming", new)

    def remove(self, path: Path) -> None:
        """Remove, for now."""
        self._step("removing", path)
        if path in self._now:
            self._now.pop(path).last = path.read_bytes()
        super().remove(path)

    def sync_folder(self, folder: Path) -> None:
        """Keep the names in a folder, also those of folders."""
        self._step("syncing the names of", folder)
        self._kept = {path: file for path, file in self._kept.items() if path.parent != folder}
        self._kept |= {path: file for path, file in self._now.items() if path.parent == folder}
        self._folders |= {path for path in folder.iterdir() if path.is_dir()}
        self._step("after syncing the names of", folder)

    def lose_power(self) -> None:
        """Leave of everything that was not synced what chance leaves."""
        dice = self._world.dice
        for path, file in self._now.items():
            file.last = path.read_bytes()
        lost = {
            folder
            for folder in sorted({path.parent for path in self._now})
            if folder not in self._folders and dice.random() < 0.5
        }
        left: dict[Path, bytes] = {}
        for path in sorted({*self._now, *self._kept}):
            chosen = dice.choice([self._now.get(path), self._kept.get(path)])
            if chosen is not None and not lost & {path.parent, *path.parents}:
                left[path] = self._torn(chosen)
        for path in self._now:
            path.unlink()
        self._now = {}
        for path, content in left.items():
            path.write_bytes(content)
            self._now[path] = File(synced=content)
        self._kept = dict(self._now)
        self._folders |= {path.parent for path in left}

    def _torn(self, file: File) -> bytes:
        """Return what a power failure leaves of a file."""
        dice, synced, last = self._world.dice, file.synced, file.last
        if last == synced or dice.random() < 0.3:
            return last
        same = len(synced) if last.startswith(synced) else 0
        cut = dice.randint(same, len(last))
        zeros = dice.random() < 0.3
        return last[:cut] + (bytes(len(last) - cut) if zeros else b"")


# ---- runs


def small(folder: Path, engine: Engine) -> Federation:
    """Return a federation with state on the server and with clients that runs in hundredths of a second."""
    return Federation(
        method=Ditto(),
        data=Synthetic(train=72, test=36, shape=(1, 1, 2), classes=2),
        net="rayfl.testing.by_hand.linear",
        clients=18,  # their state is in two files
        participation=0.25,
        rounds=5,
        training=Training(lr=0.05, batch_size=4),
        engine=engine,
        eval_every=3,
        checkpoint_every=2,
        loggers=[],
        log_level="warning",
        quiet=True,
        output=str(folder),
    )


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Return what must not depend on how a run was carried out: records, and all checkpoints."""
    named = [folder / name for name in (METRICS, PARTITION, SUMMARY, CLIENTS)]
    return {path.name: path.read_bytes() for path in [*named, *(folder / "checkpoints").iterdir()]}


@dataclass
class Undisturbed(Disk):
    """What a run leaves to which nothing happens.

    Attributes:
        end: its files at the end.
        ever: what its files have ever been. A crash may bring back those of older checkpoints that were
            removed, which does no harm.
    """

    end: dict[str, bytes] = field(default_factory=dict)
    ever: dict[str, bytes] = field(default_factory=dict)

    def rename(self, old: Path, new: Path) -> None:
        """Note what is written."""
        super().rename(old, new)
        self.ever[new.name] = new.read_bytes()

    def differences(self, found: dict[str, bytes]) -> str:
        """Say in which files another run differs, nothing if in none; parts of files do not count."""
        further = {name for name in found.keys() - self.end.keys() if not name.endswith(".tmp")}
        other = [name for name, content in self.end.items() if found.get(name) != content]
        other += [name for name in further if found[name] != self.ever.get(name)]
        return f"other bytes in {', '.join(sorted(other))}" if other else ""


@contextmanager
def without_extras(disk: Disk) -> Iterator[None]:
    """Change files with a disk; meanwhile leave out what takes long and has no part in faults."""
    before = log.disabled
    with (
        mock.patch.object(files, "disk", disk),
        mock.patch.object(running, "write_page", return_value=True),
        mock.patch.object(page, "write_page", return_value=True),
        mock.patch.object(records, "describe_environment", dict),
        mock.patch.object(running, "dump_config", _configuration),
        mock.patch.object(RunSettings, "result_settings", _deciding),
        mock.patch.object(RunSettings, "own_code", return_value={}),
        mock.patch.object(RunSettings, "check", return_value=([], "")),
    ):
        log.disabled = True
        try:
            yield
        finally:
            log.disabled = before


_DUMP, _DECIDING = running.dump_config, RunSettings.result_settings


def _once(key: Any, make: Callable[..., Any], *arguments: Any) -> Any:
    """Return what is made the first time."""
    if key not in _known:
        _known[key] = make(*arguments)
    return _known[key]


def _configuration(federation: RunSettings) -> Any:
    return _once(type(federation.engine), _DUMP, federation)  # all else is the same, but for the folder


def _deciding(federation: RunSettings, data: FederatedData | None = None) -> Any:
    return _once("result_settings", _DECIDING, federation, data)


def undisturbed() -> Undisturbed:
    """Run the federation without any fault."""
    run = Undisturbed()
    with tempfile.TemporaryDirectory(dir=_scratch()) as scratch, without_extras(run):
        small(Path(scratch, "run"), Inline()).run()
        run.end = bytes_of(Path(scratch, "run"))
    return run


def simulate(seed: int, expected: Undisturbed) -> tuple[list[str], str]:
    """Run a federation to which happens what a seed decides.

    Args:
        seed: from 0.
        expected: how it must end, see :func:`undisturbed`.

    Returns:
        The faults; and what is wrong, or nothing.
    """
    world = World(seed)
    with tempfile.TemporaryDirectory(dir=_scratch()) as scratch, without_extras(world.disk):
        folder = Path(scratch, "run")
        try:
            return world.happened, _lived(world, folder) or expected.differences(bytes_of(folder))
        except Exception:
            return world.happened, traceback.format_exc()


def _lived(world: World, folder: Path) -> str:
    """Start a driver until one gets to the end; return what is wrong on the way."""
    engine = pretend(SimulatedWorkers, world=world)
    for _ in range(LIVES):
        world.begin()
        federation = small(folder, engine)
        run = federation.resume(folder) if (folder / CONFIG).is_file() else federation
        try:
            with mock.patch.object(running, "Session", SimulatedSession):
                run.run()
            if world.dice.random() < 0.25:
                world.happened.append("power after the end")
                world.disk.lose_power()
            return ""
        except DriverDied:
            if "power" in world.happened[-1]:
                world.disk.lose_power()
        except UserError as error:
            if not (world.full or world.gone or world.gave_up):
                return f"it stops without need: {error}"
            world.happened.append(f"stopped: {error}".replace(str(folder), "the run"))
        manifest, _ = Checkpoints(folder / "checkpoints").newest_intact()
        if (manifest.round if manifest else 0) < world.saved:
            return f"the checkpoint after {world.saved} rounds is lost"
    return f"no end after {LIVES} starts"


def kind_of(fault: str) -> str:
    """Return the kind of a fault, as ``World.step`` draws it; of a run that stops, ``stopped``."""
    return fault.split(" at ")[0].split(":")[0]


def _scratch() -> str | None:
    """Return a folder in memory, if there is one: what the disk keeps is simulated."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def main() -> int:
    """Try seeds; tell which fail, and how to see them fail again."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.faults", description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="how many to try")
    parser.add_argument("--seed", type=int, help="the only one to try: what happens in it is shown")
    options = parser.parse_args()
    torch.set_num_threads(1)
    expected = undisturbed()
    if options.seed is not None:
        happened, wrong = simulate(options.seed, expected)
        print(*happened, wrong or "the same bytes", sep="\n")
        return 1 if wrong else 0
    failed = 0
    with get_context("fork").Pool(2, torch.set_num_threads, (1,)) as pool:
        tried = pool.imap(partial(simulate, expected=expected), range(options.seeds), chunksize=20)
        for seed, (_, wrong) in enumerate(tried):
            if wrong:
                failed += 1
                print(f"seed {seed}: {wrong.strip().splitlines()[-1]}")
                print(f"  see it again: python -m tests.support.faults --seed {seed}")
    print(f"{options.seeds} seeds, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
