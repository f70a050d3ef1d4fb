"""Data sets, and how they are divided among clients."""

from rayfl.data.base import Data
from rayfl.data.dataset import SPLITS, TEST, TRAIN, UNUSED, VAL, ClientData, Dataset
from rayfl.data.federated import FederatedData
from rayfl.data.partitions.by_user import ByUser
from rayfl.data.partitions.dirichlet import Dirichlet
from rayfl.data.partitions.domain_dirichlet import DomainDirichlet
from rayfl.data.partitions.domain_per_client import DomainPerClient
from rayfl.data.partitions.from_file import FromFile
from rayfl.data.partitions.iid import IID
from rayfl.data.partitions.mixed import Mixed
from rayfl.data.partitions.pachinko import Pachinko
from rayfl.data.partitions.partition import Partition
from rayfl.data.partitions.pathological import Pathological
from rayfl.data.partitions.per_client_dirichlet import PerClientDirichlet
from rayfl.data.partitions.shards import Shards
from rayfl.data.partitions.superclass import Superclass
from rayfl.data.readers.files import FileData
from rayfl.data.sets.array_files import ArrayFiles
from rayfl.data.sets.arrays import Arrays
from rayfl.data.sets.cifar import CIFAR10, CIFAR100
from rayfl.data.sets.digits import EmbeddedDigits
from rayfl.data.sets.digits_five import DigitsFive
from rayfl.data.sets.folders import ImageFolders
from rayfl.data.sets.hugging_face import HuggingFaceData
from rayfl.data.sets.image_domains import PACS, DomainNet, OfficeCaltech10
from rayfl.data.sets.leaf_files import LEAFFiles
from rayfl.data.sets.mnist import MNIST, USPS
from rayfl.data.sets.pfllib_files import PFLlibFiles, write_pfllib_files
from rayfl.data.sets.synthetic import Synthetic
from rayfl.data.sets.table import Table
from rayfl.data.sets.torchvision_data import TorchvisionData, from_torchvision
from rayfl.data.sets.writer_digits import WriterDigits

__all__ = [
    "CIFAR10", "CIFAR100", "IID", "MNIST", "PACS", "SPLITS", "TEST", "TRAIN", "UNUSED", "USPS", "VAL",
    "ArrayFiles", "Arrays", "ByUser", "ClientData", "Data", "Dataset", "DigitsFive", "Dirichlet",
    "DomainDirichlet", "DomainNet", "DomainPerClient", "EmbeddedDigits", "FederatedData", "FileData",
    "FromFile", "HuggingFaceData", "ImageFolders", "LEAFFiles", "Mixed", "OfficeCaltech10", "PFLlibFiles",
    "Pachinko", "Partition", "Pathological", "PerClientDirichlet", "Shards", "Superclass", "Synthetic",
    "Table", "TorchvisionData", "WriterDigits", "from_torchvision", "write_pfllib_files",
]  # fmt: skip
