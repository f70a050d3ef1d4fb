"""Command line: ``rayfl doctor`` lists what rayfl finds on this machine, and what is missing."""

import os
import platform
import shutil
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import rayfl
from rayfl.commands.command_line import Parser
from rayfl.settings.imports import installed
from rayfl.system.error_report import exit_code
from rayfl.system.memory import available_memory
from rayfl.system.text import one_line, tell

NEEDED = ("ray", "torch", "torchvision", "numpy", "scipy", "cvxpy", "pandas", "safetensors", "matplotlib")
FRAGILE = {
    "torch": "install torch and torchvision again, together",
    "torchvision": "install it for the same torch",
    "ray": "install it again, for this version of Python",
}
"""Packages that may be installed and not work -> what to do then."""
EXTRAS = {
    "datasets": ("hf", "data sets of Hugging Face"),
    "torchmetrics": ("metrics", "further metrics: f1, auroc, calibration_error"),
    "mlflow": ("mlflow", "the logger mlflow"),
    "wandb": ("wandb", "the logger wandb"),
    "ipykernel": ("notebook", "notebooks"),
    "ipywidgets": ("notebook", "the progress bar in notebooks"),
    "captum": ("saliency", "examples/fedios/saliency.py"),
    "shtab": ("completion", "completions for shells"),
}
"""Optional package -> the extra that installs it, and what it is for."""
PLACES = {
    "CIFAR10": ("cifar-10-batches-py",),
    "CIFAR100": ("cifar-100-python",),
    "MNIST": ("MNIST/raw",),
    "USPS": ("usps.bz2",),
    "PACS": ("PACS",),
}
"""Data set -> its files or folders in the folder of data sets."""
LITTLE = 4.0
"""Gigabytes of free memory below which a federation on Ray may not start."""


class Report:
    """Prints what was found, a line each, and collects the problems."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def found(self, name: str, text: object) -> None:
        """Print a line."""
        tell(f"{name:<17}{one_line(str(text))}")

    def bad(self, name: str, text: str, advice: str) -> None:
        """Print what is wrong, and keep what to do about it for the end."""
        self.found(name, text)
        self.wrong.append(f"{name}: {text}: {advice}")


def examine(root: Path | None) -> Report:
    """Check the packages, the processors, memory, disk and data of this machine, and print the findings.

    Args:
        root: the folder with data sets, if there is one.
    """
    report = Report()
    report.found("rayfl", f"{rayfl.__version__} in {rayfl.ROOT}")
    report.found("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for name in NEEDED:
        _package(report, name)
    for name, (extra, what) in EXTRAS.items():
        missing = f"not there; for {what}: pip install 'rayfl[{extra}]'"
        report.found(name, _version(name) if installed(name) else missing)
    broken = {name for name in FRAGILE if not _works(report, name)}
    _processors(report)
    if "torch" not in broken:
        _gpus(report)
    _room(report)
    if address := os.environ.get("RAY_ADDRESS"):
        report.found("RAY_ADDRESS", f"{address}: runs with --engine.address auto join this cluster")
    if not broken:  # reading data needs these packages
        _data(report, root)
    return report


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # the distribution has another name, such as mlflow-skinny
        return "there"


def _package(report: Report, name: str) -> None:
    try:
        report.found(name, version(name))
    except PackageNotFoundError:
        report.bad(name, "not there", "install rayfl again: pip install rayfl")


def _works(report: Report, name: str) -> bool:
    """Return whether a package can be imported; False, without a line, if it is not installed."""
    if not installed(name):
        return False
    try:
        import_module(name)
    except Exception as error:  # a broken installation raises anything
        report.bad(name, f"cannot be imported ({error})", FRAGILE[name])
        return False
    return True


def _processors(report: Report) -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    report.found("cores", f"{cores} for this process")


def _gpus(report: Report) -> None:
    import torch

    if not torch.cuda.is_available():
        why = f"built for CUDA {torch.version.cuda}, sees none" if torch.version.cuda else "built for CPUs"
        report.found("GPU", f"none: torch is {why}")
    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        size = f"{facts.total_memory / 1e9:.1f} GB"
        report.found(f"GPU {number}", f"{facts.name}, {size}, CUDA {torch.version.cuda}")


def _room(report: Report) -> None:
    free = available_memory() / 1e9
    if free < LITTLE:
        report.bad("memory", f"{free:.1f} GB free", "close other programs, or run with --engine Inline")
    else:
        report.found("memory", f"{free:.1f} GB free")
    here = shutil.disk_usage(Path.cwd())
    text = f"{here.free / 1e9:.1f} GB free for runs in {Path.cwd()}"
    if here.free < 1e9:
        report.bad("disk", text, "free some, or give another folder with --output")
    else:
        report.found("disk", text)
    if not os.access(Path.cwd(), os.W_OK):
        report.bad("folder", f"{Path.cwd()} cannot be written to", "change to another one, or give --output")
    shared = Path("/dev/shm")
    if shared.is_dir() and (size := shutil.disk_usage(shared).free) < 1e9:
        advice = "Ray keeps what it shares there; in Docker give --shm-size 4g"
        report.bad("/dev/shm", f"{size / 1e9:.1f} GB free", advice)


def _data(report: Report, root: Path | None) -> None:
    if root is None:
        report.found("data", "no folder given (--root FOLDER, or the variable RAYFL_DATA)")
        return
    if not root.is_dir():
        report.bad("data", f"{root} is no folder", "give the one that holds the data sets")
        return
    from rayfl.data import DigitsFive, DomainNet, OfficeCaltech10  # they need torch

    folders = {cls.__name__: cls.places for cls in (OfficeCaltech10, DomainNet)}
    for name, places in (PLACES | folders).items():
        there = [root / place for place in places if (root / place).exists()]
        report.found(name, there[0] if there else f"not in {root} (looked for {' and '.join(places)})")
    domains = DigitsFive(root=str(root)).there()
    report.found("DigitsFive", f"in {root}: {', '.join(domains) or 'none of its domains'}")


def parser() -> Parser:
    """Return the parser of the command line."""
    made = Parser(
        prog="rayfl doctor",
        usage="rayfl doctor [OPTIONS]",
        description="Say what is installed, how much memory, disk and processors there are, which data sets "
        "are found, and what is wrong.",
    )
    made.add(
        "--root",
        kind=str | None,
        default=os.environ.get("RAYFL_DATA"),
        metavar="FOLDER",
        help="the folder with data sets, as for --data.root; default: the variable RAYFL_DATA",
    )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 1 if something is wrong."""

    def look() -> int:
        given = parser().read(arguments)
        report = examine(None if given.root is None else Path(given.root).expanduser())
        tell("")
        for line in report.wrong:
            tell(f"wrong  {line}")
        if not report.wrong:
            tell("Nothing is wrong. A first federation: rayfl run --rounds 5")
        return 1 if report.wrong else 0

    return exit_code(look)
