"""What tests know of FedCP."""

from tests.methods.cases import Cases


def traffic(k, owned, n):
    both = {"weights": k["theta"] - k["H"] + k["s"], "head": k["H"], "policy": 2 * k["d"] ** 2 + 6 * k["d"]}
    return both, both


CASES = Cases(traffic=traffic, bad=[("lam", -0.1)], has_global=True, apart=["head.*"])
