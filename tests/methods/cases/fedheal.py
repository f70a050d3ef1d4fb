"""What tests know of FedHEAL."""

from tests.methods.cases import Cases

CASES = Cases(
    bad=[("tau", 1.5), ("tau", float("nan")), ("beta", -0.1)],
    stateless=True,
    has_global=True,
    averages=None,
    by_sign=["/history/"],
)
