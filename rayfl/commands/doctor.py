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
from rayfl.settings.imports import is_installed
from rayfl.system.error_report import exit_code
from rayfl.system.memory import available_memory
from rayfl.system.text import one_line, print_note

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
DATA_FILES = {
    "CIFAR10": ("cifar-10-batches-py",),
    "CIFAR100": ("cifar-100-python",),
    "MNIST": ("MNIST/raw",),
    "USPS": ("usps.bz2",),
    "PACS": ("PACS",),
}
"""Data set -> its files or folders in the folder of data sets."""
LITTLE_MEMORY = 4.0
"""Gigabytes of free memory below which a federation on Ray may not start."""


class Findings:
    """Prints what was found, a line each, and collects the problems."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def add_finding(self, name: str, text: object) -> None:
        """Print a line."""
        print_note(f"{name:<17}{one_line(str(text))}")

    def add_problem(self, name: str, text: str, advice: str) -> None:
        """Print what is wrong, and keep what to do about it for the end."""
        self.add_finding(name, text)
        self.wrong.append(f"{name}: {text}: {advice}")


def examine_machine(root: Path | None) -> Findings:
    """Check the packages, the processors, memory, disk and data of this machine, and print the findings.

    Args:
        root: the folder with data sets, if there is one.
    """
    report = Findings()
    report.add_finding("rayfl", f"{rayfl.__version__} in {rayfl.ROOT}")
    report.add_finding("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for name in NEEDED:
        _report_package(report, name)
    for name, (extra, what) in EXTRAS.items():
        missing = f"not there; for {what}: pip install 'rayfl[{extra}]'"
        report.add_finding(name, _installed_version(name) if is_installed(name) else missing)
    broken = {name for name in FRAGILE if not _can_import(report, name)}
    _report_cores(report)
    if "torch" not in broken:
        _report_gpus(report)
    _report_space(report)
    if address := os.environ.get("RAY_ADDRESS"):
        report.add_finding("RAY_ADDRESS", f"{address}: runs with --engine.address auto join this cluster")
    if not broken:  # reading data needs these packages
        _report_data(report, root)
    return report


def _installed_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # the distribution has another name, such as mlflow-skinny
        return "there"


def _report_package(report: Findings, name: str) -> None:
    try:
        report.add_finding(name, version(name))
    except PackageNotFoundError:
        report.add_problem(name, "not there", "install rayfl again: pip install rayfl")


def _can_import(report: Findings, name: str) -> bool:
    """Return whether a package can be imported; False, without a line, if it is not installed."""
    if not is_installed(name):
        return False
    try:
        import_module(name)
    except Exception as error:  # a broken installation raises anything
        report.add_problem(name, f"cannot be imported ({error})", FRAGILE[name])
        return False
    return True


def _report_cores(report: Findings) -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    report.add_finding("cores", f"{cores} for this process")


def _report_gpus(report: Findings) -> None:
    import torch

    if not torch.cuda.is_available():
        why = f"built for CUDA {torch.version.cuda}, sees none" if torch.version.cuda else "built for CPUs"
        report.add_finding("GPU", f"none: torch is {why}")
    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        size = f"{facts.total_memory / 1e9:.1f} GB"
        report.add_finding(f"GPU {number}", f"{facts.name}, {size}, CUDA {torch.version.cuda}")


def _report_space(report: Findings) -> None:
    free = available_memory() / 1e9
    if free < LITTLE_MEMORY:
        report.add_problem(
            "memory", f"{free:.1f} GB free", "close other programs, or run with --engine Inline"
        )
    else:
        report.add_finding("memory", f"{free:.1f} GB free")
    here = shutil.disk_usage(Path.cwd())
    text = f"{here.free / 1e9:.1f} GB free for runs in {Path.cwd()}"
    if here.free < 1e9:
        report.add_problem("disk", text, "free some, or give another folder with --output")
    else:
        report.add_finding("disk", text)
    if not os.access(Path.cwd(), os.W_OK):
        report.add_problem(
            "folder", f"{Path.cwd()} cannot be written to", "change to another one, or give --output"
        )
    shared = Path("/dev/shm")
    if shared.is_dir() and (size := shutil.disk_usage(shared).free) < 1e9:
        advice = "Ray keeps what it shares there; in Docker give --shm-size 4g"
        report.add_problem("/dev/shm", f"{size / 1e9:.1f} GB free", advice)


def _report_data(report: Findings, root: Path | None) -> None:
    if root is None:
        report.add_finding("data", "no folder given (--root FOLDER, or the variable RAYFL_DATA)")
        return
    if not root.is_dir():
        report.add_problem("data", f"{root} is no folder", "give the one that holds the data sets")
        return
    from rayfl.data import DigitsFive, DomainNet, OfficeCaltech10  # they need torch

    folders = {cls.__name__: cls.places for cls in (OfficeCaltech10, DomainNet)}
    for name, places in (DATA_FILES | folders).items():
        there = [root / place for place in places if (root / place).exists()]
        report.add_finding(name, there[0] if there else f"not in {root} (looked for {' and '.join(places)})")
    domains = DigitsFive(root=str(root)).complete_domains()
    report.add_finding("DigitsFive", f"in {root}: {', '.join(domains) or 'none of its domains'}")


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

    def run_checks() -> int:
        given = parser().read(arguments)
        report = examine_machine(None if given.root is None else Path(given.root).expanduser())
        print_note("")
        for line in report.wrong:
            print_note(f"wrong  {line}")
        if not report.wrong:
            print_note("Nothing is wrong. A first federation: rayfl run --rounds 5")
        return 1 if report.wrong else 0

    return exit_code(run_checks)
