"""What tests know of FedCO2."""

from tests.methods.cases import Cases

CASES = Cases(
    traffic=lambda k, owned, n: (
        {"weights": k["theta"] - k["b"], "heads": (n - 1) * k["stack"]},
        {"weights": k["theta"] - k["b"], "head": k["stack"]},
    ),
    options=[
        {"intra": "to_online", "inter": "offline", "exchange": "last_layer"},
        {"intra": "to_offline", "inter": "online", "offline_init": "independent"},
        {"intra": "none", "inter": "none", "personal": "bn_and_head"},
    ],
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
    plain={"intra": "none"},
)
