"""What tests know of FedRoD."""

from tests.methods.cases import Cases

CASES = Cases(bad=[("head", "conv")], has_global=True)
