"""The run folder: a run's records, written while it runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.util import find_spec
from itertools import islice
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfl.errors import BadValue, Damaged, InUse, Missing
from rayfl.record.checks import Config, Environment, Summary
from rayfl.record.history import (
    CLIENTS,
    CONFIG,
    ENGINE,
    ENVIRONMENT,
    METRICS,
    PARTITION,
    SUMMARY,
    SWEEP,
    TABLE,
    Population,
    checked_lines,
    complete_lines,
)
from rayfl.settings.imports import version_of
from rayfl.settings.yaml_file import read_mapping
from rayfl.system import files
from rayfl.system.files import (
    append_to_file,
    convert_content,
    explain_read_errors,
    explain_write_errors,
    read_json,
    replace_file,
    sync_file,
    write_file,
)

if TYPE_CHECKING:
    import pandas as pd  # at run time where tables are made


KIND_FILES = {"run": (CONFIG, METRICS), "table": (TABLE,), "sweep": (SWEEP,)}
"""The files by which folders are known."""
RECORDED_PACKAGES = ("rayfl", "torchvision")  # besides those of ``software_here``
KERNEL_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS")
"""Variables of the environment by which libraries choose what to compute with."""


def folder_kind(path: Path) -> str | None:
    """Return what a folder holds: a ``run``, a ``table`` or a ``sweep``; None if none of them."""
    return next((k for k, files in KIND_FILES.items() if all((path / f).is_file() for f in files)), None)


def check_folder_kind(path: Path, wanted: str) -> None:
    """Refuse a folder that belongs to something else: to a run, a table or a sweep, or that is inside a run.

    Args:
        path: the folder.
        wanted: what it will hold, ``run``, ``table`` or ``sweep``.
    """
    check_stays(path)
    found = folder_kind(path)
    if found not in (None, wanted):
        problem = f"holds a {found}, and a {wanted} needs a folder of its own"
        raise InUse(path, problem, "choose another --output")
    run = next((above for above in path.absolute().parents if folder_kind(above) == "run"), None)
    if run is not None:
        raise InUse(path, f"is inside the run folder {run}", "choose another --output")


def check_stays(path: Path) -> None:
    """Refuse a folder in the copy that Ray makes for ``ray job submit --working-dir``, and later deletes."""
    if "working_dir_files" in path.absolute().parts:
        problem = "is in the copy of your folder that Ray makes for a job, and deletes"
        remedy = "give --output an absolute path on storage that all hosts share, such as /shared/runs/first"
        raise BadValue(path, problem, remedy)


def check_is(path: Path, wanted: str, *files: str) -> None:
    """Refuse a folder that is not of the wanted kind.

    Args:
        path: the folder.
        wanted: ``run``, ``table`` or ``sweep``.
        files: the files that it must have; by default all that tell the kind.
    """
    for name in files or KIND_FILES[wanted]:
        if not (path / name).is_file():
            raise Missing(path, f"is not a {wanted} folder: it has no {name}")


def check_unused(path: str | Path) -> None:
    """Refuse a path at which a run folder cannot be made."""
    path = Path(path)
    check_folder_kind(path, "run")
    above = next(each for each in (path, *path.absolute().parents) if each.exists())
    if above != path and not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        raise BadValue(path, f"cannot be made: {above} is not a folder that can be written to")
    if path.exists() and not (path.is_dir() and _has_no_run(path)):
        what = "holds files" if path.is_dir() else "is a file"
        run = f", or continue the run that is there with --resume {path}" if (path / CONFIG).exists() else ""
        raise InUse(path, f"already exists and {what}; choose another --output{run}")


def _has_no_run(path: Path) -> bool:
    """Return whether a folder is empty, or has only the files of a run that failed before it began."""
    left = {re.sub(r"\.\w+\.tmp$", "", file.name) for file in path.iterdir()}
    return left <= {ENVIRONMENT, METRICS, ENGINE, CONFIG} and not (path / CONFIG).exists()


class RunFolder:
    """Writes the records of one run; make it with :meth:`create` or :meth:`resume`.

    A record has left this process when the call that writes it returns: a killed run keeps all rounds up to
    its last one.

    Attributes:
        path: the folder.
        population: the clients of the run, once its ``partition.json`` is written.
    """

    population: Population

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: str | Path, config: str, **code: Mapping[str, str]) -> RunFolder:
        """Make a new run folder with its ``config.yaml`` and ``environment.json``.

        Args:
            path: its path; must not exist, or be an empty folder.
            config: the complete configuration as YAML.
            **code: names and digests of code, by the names that they have in ``environment.json``.
        """
        check_unused(path)
        folder = cls(Path(path))
        write_file(folder.path / ENVIRONMENT, _json(describe_environment() | code, indent=2))
        for name in (METRICS, ENGINE):
            write_file(folder.path / name, "")
        files.disk.sync_folder(folder.path)
        files.disk.sync_folder(folder.path.parent)
        # Last, because a folder with a configuration can be resumed.
        write_file(folder.path / CONFIG, config)
        files.disk.sync_folder(folder.path)
        return folder

    @classmethod
    def resume(
        cls, path: str | Path, round: int, config: str | None = None, **code: Mapping[str, str]
    ) -> RunFolder:
        """Open an existing run folder, to continue with the given round.

        Args:
            path: the folder.
            round: first round to run; its records and later ones are removed.
            config: the configuration from here on, if it differs from the earlier one.
            **code: see :meth:`create`.
        """
        folder = cls(Path(path))
        check_is(folder.path, "run", CONFIG)
        first = read_environment(folder.path)
        folder.truncate(round)
        resumed = [*first.get("resumed", []), {"round": round, **describe_environment()}]
        write_file(folder.path / ENVIRONMENT, _json({**first, "resumed": resumed, **code}, indent=2))
        if config is not None:
            write_file(folder.path / CONFIG, config)
        return folder

    def write_partition(self, partition: Mapping[str, Any]) -> None:
        """Write ``partition.json``.

        Args:
            partition: at least ``domain_names`` and ``clients``, a list of dictionaries with the numbers of
                samples ``train``, ``val`` and ``test`` and ``domain`` (index into the names, or None), or a
                summary with these as ``[value, how many clients in a row]``, and their ``count``; under
                ``pool`` what :class:`~rayfl.record.checks.Contents` reads; anything else that JSON can hold
                is kept with it.
        """
        self.population = Population.from_partition(partition)
        write_file(self.path / PARTITION, _json(partition))
        files.disk.sync_folder(self.path)  # before there are lines, which cannot be read without it

    def append_metrics(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """Append the record of one round to ``metrics.jsonl``; return it as it is written.

        JSON has no NaN and no infinity: such a value is written as null, and the line gets a list
        ``not_finite`` that names it and says what it was. The keys are sorted, so equal records are equal
        bytes.
        """
        return self._append(METRICS, record)

    def append_engine(self, record: Mapping[str, Any]) -> None:
        """Append one line to ``engine.jsonl``: times, placement, memory, whatever depends on the machines."""
        self._append(ENGINE, record)

    def sync(self) -> None:
        """Bring the lines of all rounds to the disk, before a checkpoint that needs them."""
        sync_file(self.path / METRICS)
        files.disk.sync_folder(self.path)

    def truncate(self, round: int) -> None:
        """Remove the records of this round and of all later ones, and a line that was torn by a crash."""
        metrics = [line for line, _ in islice(checked_lines(self.path), round)]
        if len(metrics) < round:
            problem = f"has {len(metrics)} rounds, so the run cannot go on with round {round}"
            remedy = "restore the file from a copy, or start anew with another --output"
            raise Damaged(self.path / METRICS, problem, remedy)
        engine = [line for line, each in complete_lines(self.path / ENGINE) if each.get("round", -1) < round]
        write_file(self.path / METRICS, b"".join(metrics))
        write_file(self.path / ENGINE, b"".join(engine))
        for name in (CLIENTS, SUMMARY):
            files.disk.remove(self.path / name)

    def keep_evaluations(self, kept: Callable[[int], bool]) -> None:
        """Remove the evaluations of other rounds, such as the last one of a run that is extended.

        Args:
            kept: returns whether the evaluation of a round stays.
        """
        lines = [
            line if kept(record["round"]) else f"{_line(_without_evaluation(record))[0]}\n".encode()
            for line, record in checked_lines(self.path)
        ]
        write_file(self.path / METRICS, b"".join(lines))

    def add_code(self, code: Mapping[str, str]) -> None:
        """Add digests of code that has shown only during the run to ``environment.json``."""
        there = read_environment(self.path)
        both = {**there, "code": {**there.get("code", {}), **code}}
        write_file(self.path / ENVIRONMENT, _json(both, indent=2))

    def finish(self, clients: pd.DataFrame, summary: Mapping[str, Any]) -> None:
        """Write ``clients.parquet`` and ``summary.json``, which a run has when it is over."""
        with explain_write_errors(self.path / CLIENTS), replace_file(self.path / CLIENTS) as file:
            clients.to_parquet(file, index=False)
            files.disk.sync(file)
        code = {"version": version_of("rayfl"), "sources": software()["rayfl"]}
        write_file(self.path / SUMMARY, _json({**summary, "rayfl": code}, indent=2))
        self.sync()

    def _append(self, name: str, record: Mapping[str, Any]) -> Mapping[str, Any]:
        line, written = _line(record)
        append_to_file(self.path / name, f"{line}\n".encode())
        return written


def _without_evaluation(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record without its evaluation."""
    rest = {
        key: value for key, value in record.items() if key not in ("evaluation", "untrained", "not_finite")
    }
    named = [text for text in record.get("not_finite", ()) if not text.startswith("evaluation.")]
    return {**rest, **({"not_finite": named} if named else {})}


def describe_environment() -> dict[str, Any]:
    """Return what a reader must know of machine, libraries and code; no environment variables."""
    return {
        "python": platform.python_version(),
        "packages": {name: version_of(name) for name in RECORDED_PACKAGES},
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "git_commit": _commit(),
        "command": shlex.join(sys.orig_argv),
    }


def software_here() -> dict[str, str]:
    """Return what decides numbers on this host besides settings, data and the user's own code.

    The function is sent by value: a host may have another rayfl.

    Returns:
        ``rayfl``: a digest of its sources, for a version number may stand for several states of them; the
        versions of ``torch``, ``numpy`` and ``ray``; the kind of ``processor``.
    """
    spec = find_spec("rayfl")
    places = [*(spec.submodule_search_locations or ())] if spec else []
    return {
        "rayfl": sources_in(Path(places[0])) if places else "missing",
        **{name: version_of(name) or "missing" for name in ("torch", "numpy", "ray")},
        "processor": processor(),
    }


software = cache(software_here)
"""Returns the software of this host as it was at the first call."""


def sources_in(package: Path) -> str:
    """Return a digest of the Python files in a folder."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def read_environment(folder: Path) -> dict[str, Any]:
    """Return what ``environment.json`` of a run says; nothing if it is not there."""
    return _read_if_there(folder / ENVIRONMENT, Environment, "restore it from a copy, or remove it")


def read_summary(folder: Path) -> dict[str, Any]:
    """Return what ``summary.json`` of a run says; nothing if it is not there, as while the run goes on."""
    return _read_if_there(folder / SUMMARY, Summary, "remove it, and the run goes on from its checkpoint")


def _read_if_there(path: Path, schema: type, advice: str) -> dict[str, Any]:
    if not path.exists():
        return {}
    with explain_read_errors(path, advice):
        content: dict[str, Any] = read_json(path)
        convert_content(schema, content)
    return content


def _commit() -> str | None:
    """Return the commit of the current folder; git runs no programs that the repository configures."""
    git = ("git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "rev-parse", "HEAD")
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(git, check=True, capture_output=True, text=True, timeout=10).stdout.strip()
    return None


def processor() -> str:
    """Return the kind of this machine's processor, and what of it the libraries may use."""
    model, used = platform.processor() or platform.machine(), []
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((n.partition(":")[2].strip() for n in lines if n.startswith("model name")), model)
    with contextlib.suppress(ImportError):
        from torch.backends import cpu, mkl, mkldnn

        there = {"oneDNN": mkldnn.is_available(), "MKL": mkl.is_available()}
        used = [cpu.get_cpu_capability(), *(name for name in there if there[name])]
    used += [f"{name}={os.environ[name]}" for name in KERNEL_VARIABLES if name in os.environ]
    return ", ".join([model, *used])


def _line(record: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the record as one JSON line without its line end, and what it says."""
    try:
        return _json(record), record
    except ValueError:
        found: list[str] = []
        cleaned = {**_finite(record, "", found), "not_finite": sorted(found)}
        return _json(cleaned), cleaned


def _finite(value: Any, path: str, found: list[str]) -> Any:
    """Return the value with None for NaN and infinity; add their places to ``found``."""
    if isinstance(value, Mapping):
        return {key: _finite(x, f"{path}.{key}" if path else str(key), found) for key, x in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_finite(x, f"{path}.{i}", found) for i, x in enumerate(value)]
    if isinstance(value, float | np.floating) and not math.isfinite(value):
        found.append(f"{path}={float(value)}")
        return None
    return value


def _json(value: Any, indent: int | None = None) -> str:
    separators = (",", ":") if indent is None else None
    numpy = methodcaller("tolist")  # of arrays and numbers
    return json.dumps(
        value, sort_keys=True, allow_nan=False, separators=separators, indent=indent, default=numpy
    )


def read_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of a run folder."""
    path = folder / CONFIG
    config = read_mapping(path, "configuration")
    with explain_read_errors(path):
        convert_content(Config, config)
    return config
