"""What tests know of APFL."""

from tests.methods.cases import Cases, same

CASES = Cases(
    traffic=lambda k, owned, n: same(k["theta"] + k["s"]),
    options=[{"adaptive": False}, {"alpha": 0.9}],
    bad=[("alpha", 1.5), ("alpha", -0.5)],
    has_global=True,
    plain={"alpha": 0.0, "adaptive": False},
    page="takes a uniform one (`--averaging uniform`)",
)
