"""What tests know of FedALA."""

from tests.methods.cases import Cases, same

CASES = Cases(
    traffic=lambda k, owned, n: same(k["theta"] + k["s"]),
    options=[{"eta": 0.5, "rand_percent": 50.0, "layer_idx": 4, "threshold": 1.0, "num_pre_loss": 2}],
    bad=[
        ("eta", 0.0),
        ("rand_percent", 101.0),
        ("layer_idx", 0),
        ("threshold", -1.0),
        ("num_pre_loss", 1),
    ],
    has_global=True,
)
