"""Examples as modules: they are scripts, and in no package."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(path: str) -> ModuleType:
    """Import a script below ``examples/``."""
    name = "example_" + path.removesuffix(".py").replace("/", "_")
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(EXAMPLES))  # the folder of a script, as Python itself has it
        spec.loader.exec_module(sys.modules[name])
        sys.path.remove(str(EXAMPLES))
    return sys.modules[name]
