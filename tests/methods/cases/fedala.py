"""What tests know of FedALA."""

from tests.methods.cases import Cases

CASES = Cases(
    bad=[
        ("eta", 0.0),
        ("rand_percent", 101.0),
        ("layer_idx", 0),
        ("threshold", -1.0),
        ("num_pre_loss", 1),
    ],
    has_global=True,
)
