"""What tests know of FedAvg."""

from tests.methods.cases import Cases, same

CASES = Cases(
    traffic=lambda k, owned, n: same(k["theta"] + k["s"]),
    stateless=True,
    has_global=True,
)
