"""What tests know of FediOS."""

from tests.methods.cases import Cases

CASES = Cases(
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
)
