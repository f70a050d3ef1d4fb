"""What tests know of FedPAC."""

from tests.methods.cases import Cases

CASES = Cases(
    traffic=lambda k, owned, n: (
        {"weights": k["theta"] - k["H"] + k["s"], "centroids": k["d"] * k["C"], "change": k["H"]},
        {
            "weights": k["theta"] - k["H"] + k["s"],
            "class_sums": k["d"] * owned,
            "class_counts": owned,
            "head": k["H"],
            "h": k["d"] * owned,
            "v": 1,
        },
    ),
    bad=[("lam", -1.0), ("head_epochs", 0), ("head_lr", 0.0), ("least_weight", 1.0)],
    apart=["head.*"],
)
