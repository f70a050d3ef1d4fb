"""Data sets, and how they are divided among clients."""

from rayfl.data.base import Data
from rayfl.data.cifar import CIFAR10, CIFAR100
from rayfl.data.digits import EmbeddedDigits
from rayfl.data.federated import FederatedData
from rayfl.data.mnist import MNIST, USPS
from rayfl.data.partition import IID, Dirichlet, DomainPerClient, Partition, Pathological
from rayfl.data.pool import PARTS, TEST, TRAIN, VAL, Pool, Shard
from rayfl.data.synthetic import Synthetic

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "IID",
    "MNIST",
    "PARTS",
    "TEST",
    "TRAIN",
    "USPS",
    "VAL",
    "Data",
    "Dirichlet",
    "DomainPerClient",
    "EmbeddedDigits",
    "FederatedData",
    "Partition",
    "Pathological",
    "Pool",
    "Shard",
    "Synthetic",
]
