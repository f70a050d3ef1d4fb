"""What tests know of FedProx."""

from tests.methods.cases import Cases, same

CASES = Cases(
    traffic=lambda k, owned, n: same(k["theta"] + k["s"]),
    options=[{"mu": 0.1, "norm": "l2"}],
    bad=[("mu", -0.1), ("mu", float("nan")), ("norm", "l1")],
    stateless=True,
    has_global=True,
    plain={"mu": 0},
)
