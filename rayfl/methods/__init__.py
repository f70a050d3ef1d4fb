"""Federated methods, one file each."""

from rayfl.methods.apfl import APFL
from rayfl.methods.base import Cohort, Facts, Method
from rayfl.methods.copa import COPA
from rayfl.methods.dcpfl import DCPFL
from rayfl.methods.ditto import Ditto
from rayfl.methods.fd import FD
from rayfl.methods.fdse import FDSE
from rayfl.methods.fedala import FedALA
from rayfl.methods.fedamp import FedAMP
from rayfl.methods.fedavg import FedAvg
from rayfl.methods.fedbabu import FedBABU
from rayfl.methods.fedbn import FedBN
from rayfl.methods.fedco2 import FedCO2
from rayfl.methods.fedcp import FedCP
from rayfl.methods.feddbe import FedDBE
from rayfl.methods.feddgga import FedDGGA
from rayfl.methods.feddyn import FedDyn
from rayfl.methods.fedfa import FedFA
from rayfl.methods.fedfomo import FedFomo
from rayfl.methods.fedgh import FedGH
from rayfl.methods.fedheal import FedHEAL
from rayfl.methods.fedios import FediOS
from rayfl.methods.fedkd import FedKD
from rayfl.methods.fedopt import FedOpt
from rayfl.methods.fedpac import FedPAC
from rayfl.methods.fedper import FedPer
from rayfl.methods.fedproto import FedProto
from rayfl.methods.fedprox import FedProx
from rayfl.methods.fedrep import FedRep
from rayfl.methods.fedrod import FedRoD
from rayfl.methods.fedsr import FedSR
from rayfl.methods.fml import FML
from rayfl.methods.lgfedavg import LGFedAvg
from rayfl.methods.local import Local
from rayfl.methods.moon import MOON
from rayfl.methods.mrmtl import MRMTL
from rayfl.methods.partialfed import PartialFed
from rayfl.methods.partly_personal import PartlyPersonal
from rayfl.methods.perfedavg import PerFedAvg
from rayfl.methods.pfedme import PFedMe
from rayfl.methods.pfedvem import PFedVEM
from rayfl.methods.scaffold import SCAFFOLD
from rayfl.settings.base import classes_by_name

METHODS: dict[str, type[Method]] = classes_by_name(globals(), Method)
"""The methods that come with rayfl, by name: those imported above."""

__all__ = ["METHODS", "Cohort", "Facts", "Method", "PartlyPersonal"]
__all__ += [*METHODS]
