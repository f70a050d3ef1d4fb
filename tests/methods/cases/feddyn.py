"""What tests know of FedDyn."""

from tests.methods.cases import Cases

CASES = Cases(
    bad=[("alpha", 0.0), ("alpha", float("nan"))],
    has_global=True,
    averaging="uniform",
    predicts_with_own=False,
)
