"""What tests know of PFedMe."""

from tests.methods.cases import Cases

CASES = Cases(
    bad=[("lam", -1.0), ("K", 0), ("personal_lr", 0.0), ("beta", 0.0)],
    has_global=True,
    steady={"lam": 1.0, "K": 2, "personal_lr": 0.01},
)
