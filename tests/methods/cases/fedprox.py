"""What tests know of FedProx."""

from tests.methods.cases import Cases

CASES = Cases(bad=[("mu", -0.1), ("mu", float("nan")), ("norm", "l1")], stateless=True, has_global=True)
