"""What tests know of FedBABU."""

from tests.methods.cases import Cases, same

CASES = Cases(
    traffic=lambda k, owned, n: same(k["theta"] + k["s"] - k["H"]),
    bad=[("tune_epochs", -1), ("cut", "body")],
    stateless=True,
    has_global=True,
)
