"""What tests know of FedRep."""

from tests.methods.cases import Cases, same

CASES = Cases(
    traffic=lambda k, owned, n: same(k["theta"] - k["H"] + k["s"]),
    options=[{"personal": "fc_stack", "head_epochs": 1}],
    bad=[("personal", "conv"), ("head_epochs", 0)],
    plain=None,
)
