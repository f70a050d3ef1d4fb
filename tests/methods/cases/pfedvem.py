"""What tests know of PFedVEM."""

from tests.methods.cases import Cases

CASES = Cases(
    traffic=lambda k, owned, n: (
        {"weights": k["theta"] - k["H"] + k["s"], "head": k["H"]},
        {"weights": k["theta"] - k["H"] + k["s"], "head": k["H"], "confidence": 1},
    ),
    bad=[("mc_samples", 0), ("head_lr", 0.0), ("head_epochs", 0), ("init_scale", 0.0), ("beta", 1.0)],
    has_global=True,
    apart=["head.*"],
)
