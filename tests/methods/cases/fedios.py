"""What tests know of FediOS."""

from tests.methods.cases import Cases, same

CASES = Cases(
    traffic=lambda k, owned, n: same(k["theta"] + k["s"]),
    options=[
        {"basis": "identity", "schedule": "alternating"},
        {"rank": 20, "overflow": "reuse", "ortho_reg_on": "relu"},
        {"projections": False, "ortho_reg_on": "cos", "alpha": 0.3},
        {"basis": "uniform", "individual_extractor": False},
    ],
    bad=[
        ("alpha", 1.5),
        ("lam", -0.1),
        ("basis", "random"),
        ("rank", 0),
        ("overflow", "wrap"),
        ("ortho_reg_on", "features"),
        ("schedule", "both"),
    ],
    has_global=True,
    plain={"projections": False, "individual_extractor": False},
    page="## The regulariser of eq. 11 is zero\n\nFor projections onto orthogonal subspaces",
)
