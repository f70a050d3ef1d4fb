"""What tests know of LGFedAvg."""

from tests.methods.cases import Cases, same

CASES = Cases(traffic=lambda k, owned, n: same(k["H"]), bad=[("p", 0), ("p", 1.5)])
