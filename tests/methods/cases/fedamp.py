"""What tests know of FedAMP."""

from tests.methods.cases import Cases

CASES = Cases(
    traffic=lambda k, owned, n: ({"cloud": k["theta"]}, {"model": k["theta"] + k["s"]}),
    bad=[("alpha", 0.0), ("sigma", 0.0), ("lam", -1.0)],
    averages=None,
)
