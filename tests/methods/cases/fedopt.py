"""What tests know of FedOpt."""

from tests.methods.cases import Cases, same

CASES = Cases(
    traffic=lambda k, owned, n: same(k["theta"] + k["s"]),
    options=[{"rule": rule} for rule in ("momentum", "adagrad", "yogi")],
    bad=[("rule", "sgd"), ("server_lr", 0.0), ("beta1", 1.0), ("beta2", -0.1), ("tau", 0.0)],
    stateless=True,
    has_global=True,
    plain={"rule": "momentum", "server_lr": 1.0, "beta1": 0.0},
    predicts_with_own=False,
    averages={"rule": "momentum"},
    page="takes a uniform one (`--averaging uniform`)",
)
