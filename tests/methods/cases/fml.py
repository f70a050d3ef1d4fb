"""What tests know of FML."""

from tests.methods.cases import Cases, same

CASES = Cases(
    traffic=lambda k, owned, n: same(k["theta"] + k["s"]),
    options=[{"init": "common", "alpha": 0.9, "beta": 0.1}],
    bad=[("alpha", 1.5), ("beta", -0.5), ("init", "random"), ("meme", 3)],
    has_global=True,
    averaging="uniform",
    plain={"beta": 1.0, "alpha": 1.0, "init": "common"},
)
