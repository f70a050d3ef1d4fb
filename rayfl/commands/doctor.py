"""Command line: ``rayfl doctor`` lists what rayfl finds on this machine, and what is missing."""

import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

import rayfl
from rayfl.commands.command_line import Parser, parser_of_function
from rayfl.settings.imports import is_installed, version_of
from rayfl.system.error_report import exit_code
from rayfl.system.memory import available_memory, count_cpus
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


Finding = tuple[str, object, str]
"""What was looked at, what was found, and what to do about it if that is wrong, else an empty text."""


def examine_machine(root: Path | None) -> Iterator[Finding]:
    """Check the packages, the processors, memory, disk and data of this machine, and yield the findings.

    Args:
        root: the folder with data sets, if there is one.
    """
    yield "rayfl", f"{rayfl.__version__} in {rayfl.ROOT}", ""
    yield "Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}", ""
    for name in NEEDED:
        found = version_of(name)
        yield name, found or "not there", "" if found else "install rayfl again: pip install rayfl"
    for name, (extra, what) in EXTRAS.items():
        # The distribution may have another name, such as mlflow-skinny.
        found = (version_of(name) or "there") if is_installed(name) else None
        yield name, found or f"not there; for {what}: pip install 'rayfl[{extra}]'", ""
    broken = set()
    for name, advice in FRAGILE.items():
        try:
            import_module(name)
        except Exception as error:  # a broken installation raises anything
            broken.add(name)
            if is_installed(name):
                yield name, f"cannot be imported ({error})", advice
    yield "cores", f"{count_cpus()} for this process", ""
    if "torch" not in broken:
        yield from _find_gpus()
    yield from _find_space()
    if address := os.environ.get("RAY_ADDRESS"):
        yield "RAY_ADDRESS", f"{address}: runs with --engine.address auto join this cluster", ""
    if not broken:  # reading data needs these packages
        yield from _find_data(root)


def _find_gpus() -> Iterator[Finding]:
    import torch

    if not torch.cuda.is_available():
        why = f"built for CUDA {torch.version.cuda}, sees none" if torch.version.cuda else "built for CPUs"
        yield "GPU", f"none: torch is {why}", ""
    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        size = f"{facts.total_memory / 1e9:.1f} GB"
        yield f"GPU {number}", f"{facts.name}, {size}, CUDA {torch.version.cuda}", ""


def _find_space() -> Iterator[Finding]:
    free, here = available_memory() / 1e9, Path.cwd()
    advice = "close other programs, or run with --engine Inline" if free < LITTLE_MEMORY else ""
    yield "memory", f"{free:.1f} GB free", advice
    room = shutil.disk_usage(here).free
    advice = "free some, or give another folder with --output" if room < 1e9 else ""
    yield "disk", f"{room / 1e9:.1f} GB free for runs in {here}", advice
    if not os.access(here, os.W_OK):
        yield "folder", f"{here} cannot be written to", "change to another one, or give --output"
    shared = Path("/dev/shm")
    if shared.is_dir() and (size := shutil.disk_usage(shared).free) < 1e9:
        advice = "Ray keeps what it shares there; in Docker give --shm-size 4g"
        yield "/dev/shm", f"{size / 1e9:.1f} GB free", advice


def _find_data(root: Path | None) -> Iterator[Finding]:
    if root is None:
        yield "data", "no folder given (--root FOLDER, or the variable RAYFL_DATA)", ""
        return
    if not root.is_dir():
        yield "data", f"{root} is no folder", "give the one that holds the data sets"
        return
    from rayfl.data import DigitsFive, DomainNet, OfficeCaltech10  # they need torch

    folders = {cls.__name__: cls.places for cls in (OfficeCaltech10, DomainNet)}
    for name, places in (DATA_FILES | folders).items():
        there = [root / place for place in places if (root / place).exists()]
        yield name, there[0] if there else f"not in {root} (looked for {' and '.join(places)})", ""
    domains = DigitsFive(root=str(root)).complete_domains()
    yield "DigitsFive", f"in {root}: {', '.join(domains) or 'none of its domains'}", ""


def check_machine(root: str | None = None) -> int:
    """Say what is installed, how much memory, disk and processors there are, which data sets are found, and
    what is wrong.

    Args:
        root: the folder with data sets, as for --data.root; default: the variable RAYFL_DATA.

    Returns:
        1 if something is wrong, else 0.
    """
    root, wrong = root or os.environ.get("RAYFL_DATA"), list[str]()
    for name, text, advice in examine_machine(None if root is None else Path(root).expanduser()):
        print_note(f"{name:<17}{one_line(str(text))}")
        wrong += [f"wrong  {name}: {text}: {advice}"] if advice else []
    print_note("")
    for line in wrong or ["Nothing is wrong. A first federation: rayfl run --rounds 5"]:
        print_note(line)
    return 1 if wrong else 0


def parser() -> Parser:
    """Return the parser of the command line."""
    usage = "rayfl doctor [OPTIONS]"
    return parser_of_function(check_machine, {"root": "FOLDER"}, prog="rayfl doctor", usage=usage)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 1 if something is wrong."""
    return exit_code(lambda: check_machine(**vars(parser().read(arguments))))
