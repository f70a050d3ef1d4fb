"""What tests know of FedBABU."""

from tests.methods.cases import Cases, same

CASES = Cases(
    traffic=lambda k, owned, n: same(k["theta"] + k["s"] - k["H"]),
    options=[{"tune_epochs": 1, "cut": "fc_stack"}],
    bad=[("tune_epochs", -1), ("cut", "body")],
    stateless=True,
    has_global=True,
    plain=None,
)
