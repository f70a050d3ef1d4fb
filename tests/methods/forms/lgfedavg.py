"""LG-FedAvg: Liang et al., arXiv 2001.01523, 2020, Algorithm 1, without auxiliary losses."""

from tests.methods.forms.partial import average_part
from tests.methods.forms.world import Outcome, World


def run(world: World, *, p: int = 2) -> Outcome:
    """Average the last `p` parameters; BatchNorm's running statistics stay with the client."""
    return average_part(
        world, lambda net: {*net.state_dict()} - {n for n, _ in [*net.named_parameters()][-p:]}
    )
