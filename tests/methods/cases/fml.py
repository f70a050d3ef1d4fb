"""What tests know of FML."""

from tests.methods.cases import Cases

CASES = Cases(
    bad=[("alpha", 1.5), ("beta", -0.5), ("init", "random"), ("meme", 3)],
    has_global=True,
    averaging="uniform",
)
