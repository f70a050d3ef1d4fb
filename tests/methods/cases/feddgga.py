"""What tests know of FedDGGA."""

from tests.methods.cases import Cases

CASES = Cases(
    traffic=lambda k, owned, n: (
        {"weights": k["theta"] + k["s"]},
        {"weights": k["theta"] + k["s"], "gap": 1},
    ),
    options=[{"metric": "loss", "center": True, "step": 0.5}],
    bad=[("step", 1.5), ("metric", "f1")],
    changing={"metric": "loss"},
    has_global=True,
    averages=None,
    page="d (1 − 1/T)",
)
