"""Data sets, and how they are divided among clients."""

from rayfl.data.base import Data
from rayfl.data.cifar import CIFAR10, CIFAR100
from rayfl.data.digits import EmbeddedDigits
from rayfl.data.digits_five import DigitsFive
from rayfl.data.domain_dirichlet import DomainDirichlet
from rayfl.data.federated import FederatedData
from rayfl.data.folders import ImageFolders
from rayfl.data.hierarchy import Pachinko, Superclass
from rayfl.data.image_domains import PACS, DomainNet, OfficeCaltech10
from rayfl.data.mnist import MNIST, USPS
from rayfl.data.partition import IID, Dirichlet, DomainPerClient, Partition, Pathological
from rayfl.data.pool import PARTS, TEST, TRAIN, UNUSED, VAL, Pool, Shard
from rayfl.data.synthetic import Synthetic

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "IID",
    "MNIST",
    "PACS",
    "PARTS",
    "TEST",
    "TRAIN",
    "UNUSED",
    "USPS",
    "VAL",
    "Data",
    "DigitsFive",
    "Dirichlet",
    "DomainDirichlet",
    "DomainNet",
    "DomainPerClient",
    "EmbeddedDigits",
    "FederatedData",
    "ImageFolders",
    "OfficeCaltech10",
    "Pachinko",
    "Partition",
    "Pathological",
    "Pool",
    "Shard",
    "Superclass",
    "Synthetic",
]
