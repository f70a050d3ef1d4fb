"""What tests know of FedRep."""

from tests.methods.cases import Cases, same

CASES = Cases(
    traffic=lambda k, owned, n: same(k["theta"] - k["H"] + k["s"]),
    bad=[("personal", "conv"), ("head_epochs", 0)],
)
