"""What tests know of FedOpt."""

from tests.methods.cases import Cases

CASES = Cases(
    bad=[("rule", "sgd"), ("server_lr", 0.0), ("beta1", 1.0), ("beta2", -0.1), ("tau", 0.0)],
    stateless=True,
    has_global=True,
    predicts_with_own=False,
    averages={"rule": "momentum"},
)
