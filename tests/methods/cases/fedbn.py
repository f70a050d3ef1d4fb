"""What tests know of FedBN."""

from tests.methods.cases import Cases, same

CASES = Cases(
    traffic=lambda k, owned, n: same(k["theta"] - k["b"]),
    bad=[("bn_personal", "none"), ("unseen_passes", 0)],
    adapts=True,
)
