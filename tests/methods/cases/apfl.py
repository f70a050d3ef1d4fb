"""What tests know of APFL."""

from tests.methods.cases import Cases

CASES = Cases(bad=[("alpha", 1.5), ("alpha", -0.5)], has_global=True)
