"""What tests know of DCPFL."""

from tests.methods.cases import Cases

CASES = Cases(
    traffic=lambda k, owned, n: (
        {"head": k["H"], "means": k["d"] * k["C"]},
        {"counts": owned, "means": owned * k["d"], "covariances": owned * k["d"] * (k["d"] + 1) // 2},
    ),
    bad=[
        ("lam", -0.1),
        ("num_virtual", 0),
        ("server_lr", 0.0),
        ("server_steps", 0),
        ("calib_epochs", 0),
        ("calib_batch", 0),
        ("calib_lr", -1.0),
        ("calib_steps", 0),
        ("cov_formula", "exact"),
        ("absent", "ignore"),
        ("min_class_count", 0),
        ("eval_head", "both"),
        ("init", "random"),
    ],
    predicts_with_own=False,
    averages=None,
)
