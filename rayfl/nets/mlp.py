"""A net of linear layers, for inputs of any shape."""

import math
from typing import Annotated

from torch import Tensor, nn

from rayfl.errors import Conflict
from rayfl.nets.base import Architecture
from rayfl.nets.head import kind_name
from rayfl.nets.split import Shape, SplitNet
from rayfl.settings import at_least


class MLP(Architecture):
    """Linear layers with ReLU between them, for vectors, or anything else flattened.

    159,010 parameters for images of 1x28x28 and 10 classes; 199,210 with ``hidden`` [200, 200], the 2NN of
    FedAvg (McMahan et al., AISTATS 2017).
    """

    hidden: tuple[Annotated[int, at_least(1)], ...] = (200,)
    """Units of the hidden layers; without any, the net is a linear classifier."""

    def check_inputs(self, like: Tensor, classes: int) -> None:
        """Refuse token ids."""
        if not like.is_floating_point():
            remedy = "choose a net for texts, such as TokenMLP, or give numbers that are no ids as floats"
            raise Conflict("net", f"{self} takes numbers, and the data have {kind_name(like)}", remedy)

    def build(self, shape: Shape, classes: int) -> SplitNet:
        """Build the net."""
        layers, inputs = nn.Sequential(), math.prod(shape)
        for outputs in self.hidden:
            layers.extend([nn.Linear(inputs, outputs), nn.ReLU()])
            inputs = outputs
        return SplitNet(nn.Flatten(), layers, nn.Linear(inputs, classes))
