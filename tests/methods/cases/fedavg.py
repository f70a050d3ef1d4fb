"""What tests know of FedAvg."""

from tests.methods.cases import Cases

CASES = Cases(stateless=True, has_global=True)
