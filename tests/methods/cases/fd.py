"""What tests know of FD."""

from tests.methods.cases import Cases

CASES = Cases(
    traffic=lambda k, owned, n: (
        {"outputs": k["C"] ** 2, "owners": k["C"]},
        {"outputs": k["C"] * owned, "owners": owned},
    ),
    bad=[("gamma", -1.0)],
    averages=None,
)
