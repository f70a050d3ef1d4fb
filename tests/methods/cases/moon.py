"""What tests know of MOON."""

from tests.methods.cases import Cases, same

CASES = Cases(
    traffic=lambda k, owned, n: same(k["theta"] + k["s"]),
    options=[{"mu": 5.0, "tau": 0.1}],
    bad=[("mu", -1.0), ("tau", 0.0), ("tau", float("nan"))],
    has_global=True,
    plain={"mu": 0},
)
