"""What tests know of FedSR."""

from tests.methods.cases import Cases, same

CASES = Cases(
    traffic=lambda k, owned, n: same(k["theta"] + k["s"]),
    options=[{"alpha_l2r": 0.1, "alpha_cmi": 0.3, "test_samples": 3}],
    bad=[("alpha_l2r", -1.0), ("alpha_cmi", -1.0), ("test_samples", 0)],
    has_global=True,
    plain=None,
    net="tests.support.by_hand.gaussian",
    rounds=16,
    page="takes a uniform one (`--averaging uniform`)",
)
