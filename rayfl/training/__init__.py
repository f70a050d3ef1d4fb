"""The numeric core: weights, the one training loop, reductions, scoring."""

from rayfl.training.client import Client, Fitted
from rayfl.training.net import Batch, Net
from rayfl.training.params import Params
from rayfl.training.settings import Training
from rayfl.training.state import State
from rayfl.training.sums import Gather, Mean, Reduction, Sum, weighted_mean

__all__ = [
    "Batch",
    "Client",
    "Fitted",
    "Gather",
    "Mean",
    "Net",
    "Params",
    "Reduction",
    "State",
    "Sum",
    "Training",
    "weighted_mean",
]
