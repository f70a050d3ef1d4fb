"""What tests know of FedCO2."""

from tests.methods.cases import Cases

CASES = Cases(
    traffic=lambda k, owned, n: (
        {"weights": k["theta"] - k["b"], "heads": (n - 1) * k["stack"]},
        {"weights": k["theta"] - k["b"], "head": k["stack"]},
    ),
    bad=[
        ("mu", -1.0),
        ("mutual_epochs", 0),
        ("adapt_epochs", 0),
        ("kd_temperature", 0.0),
        ("bn_personal", "some"),
        ("intra", "online"),
        ("inter", "to_online"),
        ("personal", "fc"),
        ("exchange", "conv"),
        ("offline_init", "zero"),
    ],
    averaging="uniform",
    rounds=2,  # each takes four times as long as others: two nets, two phases, foreign classifiers
)
