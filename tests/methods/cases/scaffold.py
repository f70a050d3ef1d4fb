"""What tests know of SCAFFOLD."""

from tests.methods.cases import Cases

CASES = Cases(
    traffic=lambda k, owned, n: (
        {"weights": k["theta"] + k["s"], "control": k["theta"]},
        {"step": k["theta"] + k["s"], "control": k["theta"]},
    ),
    bad=[("server_lr", 0.0), ("server_lr", float("inf"))],
    has_global=True,
    averaging="uniform",
)
