"""What tests know of MOON."""

from tests.methods.cases import Cases

CASES = Cases(bad=[("mu", -1.0), ("tau", 0.0), ("tau", float("nan"))], has_global=True)
