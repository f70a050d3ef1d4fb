"""rayfl: personalised federated learning, simulated at scale on Ray."""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayfl.callbacks.callback import Callback
    from rayfl.engine import Inline, Ray
    from rayfl.errors import UserError
    from rayfl.evaluation.finetune import Finetune
    from rayfl.federation import Federation, resumed
    from rayfl.methods import Method
    from rayfl.report.plot import Plot
    from rayfl.running.result import Result
    from rayfl.running.saved_models import Models, load_models
    from rayfl.training import Training

__version__ = "0.1.0"

ROOT = Path(__file__).parent
"""The folder of the package."""

STARTED = "RAYFL_STARTED_IN"
"""Variable with the folder in which a command was started, for the processes that it starts; see
``rayfl.settings.imports.local_imports``.
"""

# With python -m rayfl... the current folder is first, and this is imported before everything else.
_own = sys.argv[:1] == ["-m"] and any(name.partition(".")[0] == "rayfl" for name in sys.orig_argv)
if _own and not sys.flags.safe_path and sys.path[0] != str(ROOT.parent):
    del sys.path[0]
if STARTED in os.environ and os.environ[STARTED] not in sys.path:
    sys.path.append(os.environ[STARTED])

__all__ = [
    "Callback",
    "Federation",
    "Finetune",
    "Inline",
    "Method",
    "Models",
    "Plot",
    "Ray",
    "Result",
    "Training",
    "UserError",
    "load_models",
    "resumed",
]

_HOME = {
    "Callback": "rayfl.callbacks.callback",
    "Federation": "rayfl.federation",
    "Finetune": "rayfl.evaluation.finetune",
    "Inline": "rayfl.engine",
    "Method": "rayfl.methods",
    "Models": "rayfl.running.saved_models",
    "Plot": "rayfl.report.plot",
    "Ray": "rayfl.engine",
    "Result": "rayfl.running.result",
    "Training": "rayfl.training",
    "UserError": "rayfl.errors",
    "load_models": "rayfl.running.saved_models",
    "resumed": "rayfl.federation",
}


_PARTS = ("data", "evaluation", "methods", "nets", "sampling", "settings", "testing", "training")
"""Modules that people name, as in ``rayfl.data.EmbeddedDigits()``."""


def __dir__() -> list[str]:
    """Return all public names, also those that are not imported yet."""
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__, *_PARTS})


def __getattr__(name: str) -> Any:
    """Import on first use: every client actor imports the package, and few of its parts."""
    if name in _PARTS:
        return import_module(f"rayfl.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'rayfl' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
