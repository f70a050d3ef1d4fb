"""What tests know of FedSR."""

from tests.methods.cases import Cases

CASES = Cases(
    bad=[("alpha_l2r", -1.0), ("alpha_cmi", -1.0), ("test_samples", 0)],
    has_global=True,
    net="tests.support.by_hand.gaussian",
    rounds=16,
)
