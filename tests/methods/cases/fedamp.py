"""What tests know of FedAMP."""

from tests.methods.cases import Cases

CASES = Cases(
    traffic=lambda k, owned, n: ({"cloud": k["theta"]}, {"model": k["theta"] + k["s"]}),
    options=[{"alpha": 0.5, "sigma": 10.0, "lam": 0.2}],
    bad=[("alpha", 0.0), ("sigma", 0.0), ("lam", -1.0)],
    averages=None,
    plain={"lam": 0.0},
)
