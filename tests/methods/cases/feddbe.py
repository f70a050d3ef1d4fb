"""What tests know of FedDBE."""

from tests.methods.cases import Cases

CASES = Cases(
    traffic=lambda k, owned, n: (
        {"weights": k["theta"] + k["s"], "before": k["d"]},
        {"weights": k["theta"] + k["s"]},
    ),
    bad=[("kappa", -1.0), ("momentum", 0.0)],
    has_global=True,
)
