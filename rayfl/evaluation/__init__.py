"""Evaluation: how models are scored, and the figures that are made of the scores.

The protocols can be had from here, because configurations name them. Import all else from its module: client
actors load this package, and must not wait for pandas.
"""

from rayfl.evaluation.protocol import (
    DCPFL,
    FDSE,
    PROTOCOLS,
    Default,
    FDSEGlobal,
    FedCO2CIFAR,
    FedCO2Feature,
    FedCO2Last,
    FediOS,
    FediOSGlobal,
    Protocol,
)

__all__ = ["PROTOCOLS", "Protocol", *PROTOCOLS]
