"""What tests know of FedDGGA."""

from tests.methods.cases import Cases

CASES = Cases(
    traffic=lambda k, owned, n: (
        {"weights": k["theta"] + k["s"]},
        {"weights": k["theta"] + k["s"], "gap": 1},
    ),
    bad=[("step", 1.5), ("metric", "f1")],
    changing={"metric": "loss"},
    has_global=True,
    averages=None,
)
