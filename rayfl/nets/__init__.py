"""Architectures: every net is a ``SplitNet``, and ``build`` makes one by name."""

from rayfl.nets.catalogue import NETS, build
from rayfl.nets.dse import dse_blocks
from rayfl.nets.split import CUTS, Shape, SplitNet

__all__ = ["CUTS", "NETS", "Shape", "SplitNet", "build", "dse_blocks"]
