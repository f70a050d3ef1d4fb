"""What tests know of PerFedAvg."""

from tests.methods.cases import Cases, same

CASES = Cases(
    traffic=lambda k, owned, n: same(k["theta"] + k["s"]),
    options=[{"alpha": 0.05, "hessian": "differences", "delta": 0.01, "step_samples": 3}],
    bad=[("alpha", 0.0), ("hessian", "exact"), ("delta", 0.0), ("step_samples", -1)],
    stateless=True,
    has_global=True,
    averaging="uniform",
    plain=None,
)
