"""FedPer: Arivazhagan et al., arXiv 1912.00818, 2019, Algorithms 1 and 2."""

from tests.methods.forms.partial import average_part
from tests.methods.forms.world import Outcome, World


def run(world: World, *, personal: str = "last_layer") -> Outcome:
    """Average the base layers, W_B; W_P stays."""
    parts = ("head.",) if personal == "last_layer" else ("fc.", "head.")
    return average_part(world, lambda net: {name for name in net.state_dict() if name.startswith(parts)})
