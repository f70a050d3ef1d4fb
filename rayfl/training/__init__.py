"""The numeric core: weights, the one training loop, reductions, scoring."""

from rayfl.training.client import Client, Fitted
from rayfl.training.context import Context
from rayfl.training.losses import BalancedSoftmax, CrossEntropy, Focal, Loss
from rayfl.training.net import Batch, Net
from rayfl.training.optimisers import SGD, Adam, AdamW, Optimiser
from rayfl.training.params import Params
from rayfl.training.schedules import Constant, Cosine, Exponential, Schedule, Steps
from rayfl.training.settings import Training
from rayfl.training.state import State
from rayfl.training.sums import Gather, Mean, Reduction, Sum, weighted_mean

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "BalancedSoftmax",
    "Batch",
    "Client",
    "Constant",
    "Context",
    "Cosine",
    "CrossEntropy",
    "Exponential",
    "Fitted",
    "Focal",
    "Gather",
    "Loss",
    "Mean",
    "Net",
    "Optimiser",
    "Params",
    "Reduction",
    "Schedule",
    "State",
    "Steps",
    "Sum",
    "Training",
    "weighted_mean",
]
