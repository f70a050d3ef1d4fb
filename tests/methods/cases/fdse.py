"""What tests know of FDSE."""

from tests.methods.cases import Cases

CASES = Cases(
    traffic=lambda k, owned, n: (
        {"weights": k["theta"] - k["dse"] + k["s"] - k["dse_s"], "dse": k["dse"]},
        {"weights": k["theta"] - k["dse"] + k["s"] - k["dse_s"], "dse": k["dse"]},
    ),
    bad=[
        ("lam", -0.1),
        ("tau", 0.0),
        ("beta", float("nan")),
        ("gamma", 1.0),
        ("unit", "layer"),
        ("attn_unit", "layer"),
        ("reg", "none"),
        ("ema_init", "zero"),
        ("share_every", -1),
        ("unseen_epochs", 0),
        ("unseen_lr", -1.0),
    ],
    averaging="uniform",
    averages={"consensus": False},
    net="tests.support.by_hand.dse",
    adapts=True,
    apart=["*.dse_conv.*", "*.dse_bn.weight", "*.dse_bn.bias"],
)
