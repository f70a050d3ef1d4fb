"""What tests know of FedDyn."""

from tests.methods.cases import Cases, same

CASES = Cases(
    traffic=lambda k, owned, n: same(k["theta"] + k["s"]),
    bad=[("alpha", 0.0), ("alpha", float("nan"))],
    has_global=True,
    averaging="uniform",
    plain=None,
    predicts_with_own=False,
)
