"""What tests know of Ditto."""

from tests.methods.cases import Cases, same

CASES = Cases(
    traffic=lambda k, owned, n: same(k["theta"] + k["s"]),
    bad=[("mu", -1.0)],
    has_global=True,
    plain={"mu": 0},
)
