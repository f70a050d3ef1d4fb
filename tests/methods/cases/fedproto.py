"""What tests know of FedProto."""

from tests.methods.cases import Cases

CASES = Cases(
    traffic=lambda k, owned, n: (
        {"prototypes": k["d"] * k["C"]},
        {"prototypes": k["d"] * owned, "owners": owned},
    ),
    bad=[("lam", -1.0), ("predict", "both"), ("prototype_weights", "samples")],
    predicts_with_own=False,
    averages=None,
    without_loss=True,
)
