"""What tests know of MR-MTL."""

from tests.methods.cases import Cases

CASES = Cases(bad=[("lam", -1.0)], has_global=True)
