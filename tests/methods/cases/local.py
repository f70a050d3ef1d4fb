"""What tests know of Local."""

from tests.methods.cases import Cases

CASES = Cases(traffic=lambda k, owned, n: ({}, {}), averages=None)
