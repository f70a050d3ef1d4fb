"""What tests know of FedFA."""

from tests.methods.cases import Cases

CASES = Cases(
    traffic=lambda k, owned, n: (
        {"weights": k["theta"] + k["s"] - k["ffa"], "statistics": k["ffa"]},
        {"weights": k["theta"] + k["s"] - k["ffa"], "statistics": k["ffa"] // 2},
    ),
    bad=[("prob", 1.5), ("momentum", -0.1), ("var_mode", "layer")],
    stateless=True,
    has_global=True,
    net="tests.support.by_hand.ffa",
    rounds=8,
    apart=["*.mean", "*.scale", "*.mean_var", "*.scale_var"],
)
