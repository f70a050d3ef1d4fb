"""What tests know of PartialFed."""

from tests.methods.cases import Cases

CASES = Cases(
    traffic=lambda k, owned, n: (
        {"weights": k["theta"] + k["s"]},
        {"weights": k["theta"] + k["s"], "kept": k["layers"]},
    ),
    bad=[
        ("mode", "some"),
        ("k", 0),
        ("gumbel_start", 0.0),
        ("gumbel_end", 0.0),
        ("gumbel_decay", 1.5),
        ("share", 0.0),
    ],
    buffered={"mode": "no_bn"},
    has_global=True,
)
