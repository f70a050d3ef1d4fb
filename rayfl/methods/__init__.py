"""Federated methods, one file each."""

from rayfl.methods.base import Cohort, Method
from rayfl.methods.fedavg import FedAvg

METHODS: dict[str, type[Method]] = {m.__name__: m for m in (FedAvg,)}
"""The methods that come with rayfl, by name."""

__all__ = ["METHODS", "Cohort", "FedAvg", "Method", *METHODS]
