"""What tests know of FedKD."""

from tests.methods.cases import Cases

CASES = Cases(
    traffic=lambda k, owned, n: (
        {"weights": k["theta"] + k["s"]},
        {"weights": None, "ranks": k["matrices"]},  # by the ranks: see test_further_baselines
    ),
    bad=[("T_start", 0.0), ("T_end", 1.5), ("mentee", 3)],
    has_global=True,
    averaging="uniform",
)
