"""What tests know of Ditto."""

from tests.methods.cases import Cases

CASES = Cases(bad=[("mu", -1.0)], has_global=True)
