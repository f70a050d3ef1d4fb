"""What tests know of PerFedAvg."""

from tests.methods.cases import Cases

CASES = Cases(
    bad=[("alpha", 0.0), ("hessian", "exact"), ("delta", 0.0), ("step_samples", -1)],
    stateless=True,
    has_global=True,
    averaging="uniform",
    steady={"alpha": 1e-6},  # BatchNorm on two samples, half of the last batch, makes much of rounding
)
