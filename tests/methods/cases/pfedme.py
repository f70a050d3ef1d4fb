"""What tests know of PFedMe."""

from tests.methods.cases import Cases, same

CASES = Cases(
    traffic=lambda k, owned, n: same(k["theta"] + k["s"]),
    options=[{"lam": 2.0, "K": 2, "personal_lr": 0.05, "beta": 0.5}],
    bad=[("lam", -1.0), ("K", 0), ("personal_lr", 0.0), ("beta", 0.0)],
    has_global=True,
    plain=None,
    steady={"lam": 1.0, "K": 2, "personal_lr": 0.01},
)
