"""What tests know of FedFomo."""

from tests.methods.cases import Cases

CASES = Cases(
    traffic=lambda k, owned, n: (
        {"models": min(4, n - 1) * (k["theta"] + k["s"])},
        {"model": k["theta"] + k["s"], "gains": min(5, n)},
    ),
    bad=[("models", 0), ("epsilon", 1.5), ("epsilon_decay", -0.1), ("own", "never")],
    averages=None,
    predicts_with_own=True,
)
