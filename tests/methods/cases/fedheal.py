"""What tests know of FedHEAL."""

from tests.methods.cases import Cases, same

CASES = Cases(
    traffic=lambda k, owned, n: same(k["theta"] + k["s"]),
    options=[{"tau": -1.0, "beta": 0.0}],
    bad=[("tau", 1.5), ("tau", float("nan")), ("beta", -0.1)],
    stateless=True,
    has_global=True,
    plain={"tau": -1.0},
    averages=None,
    by_sign=["/history/"],
)
