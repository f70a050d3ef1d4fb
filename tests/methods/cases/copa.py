"""What tests know of COPA."""

from tests.methods.cases import Cases

CASES = Cases(
    traffic=lambda k, owned, n: (
        {"weights": k["theta"] - k["H"] + k["s"], "heads": (n - 1) * k["H"]},
        {"weights": k["theta"] - k["H"] + k["s"], "head": k["H"]},
    ),
    bad=[("foreign", "all"), ("w_foreign", -1.0)],
    has_global=True,
    averaging="uniform",
    predicts_with_own=False,
    apart=["head.*"],
)
