"""What tests know of FedRoD."""

from tests.methods.cases import Cases, same

CASES = Cases(
    traffic=lambda k, owned, n: same(k["theta"] + k["s"]),
    options=[{"head": "fc_stack"}, {"balanced": False}],
    bad=[("head", "conv")],
    has_global=True,
    plain=None,
)
