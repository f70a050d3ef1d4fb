"""What tests know of FedGH."""

from tests.methods.cases import Cases

CASES = Cases(
    traffic=lambda k, owned, n: ({"head": k["H"]}, {"means": owned * k["d"], "classes": owned}),
    bad=[("server_lr", 0.0)],
    predicts_with_own=False,
    averages=None,
)
