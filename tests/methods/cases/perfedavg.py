"""What tests know of PerFedAvg."""

from tests.methods.cases import Cases, same

CASES = Cases(
    traffic=lambda k, owned, n: same(k["theta"] + k["s"]),
    bad=[("alpha", 0.0), ("hessian", "exact"), ("delta", 0.0), ("step_samples", -1)],
    stateless=True,
    has_global=True,
    averaging="uniform",
    plain=None,
    steady={"alpha": 1e-6},  # BatchNorm on two samples, half of the last batch, makes much of rounding
)
