"""Architectures: classes that build a ``SplitNet`` for the inputs at hand."""

from rayfl.nets.alexnet import AlexNet
from rayfl.nets.augmenting import FFA, FedFAAlexNet, FedFACNN, ffa_layers
from rayfl.nets.backbones import DenseNet121, EfficientNetB0, MobileNetV2
from rayfl.nets.base import Architecture, ImageArchitecture, TokenArchitecture
from rayfl.nets.convolutional import (
    CNN,
    CNNB,
    MOONCNN,
    DigitModel,
    FedAvgCNN,
    FedGHCNN,
    LeNet,
    PFLResearchCNN,
)
from rayfl.nets.dse import DSECNN, DSEResNet50, DSEViT, FDSEAlexNet, dse_blocks
from rayfl.nets.mlp import MLP
from rayfl.nets.module import LoRA, Module, build
from rayfl.nets.probabilistic import FedSRAlexNet, FedSRCNN, GaussianMean
from rayfl.nets.resnet import ResNet18, ResNet50
from rayfl.nets.split import CUTS, Shape, SplitNet
from rayfl.nets.text import CharLSTM, TokenMLP
from rayfl.nets.transformer import Transformer
from rayfl.nets.vit import ViT
from rayfl.settings.base import classes_by_name

NETS: dict[str, type[Architecture]] = classes_by_name(globals(), Architecture)
"""The nets that come with rayfl, by name: those imported above."""

__all__ = [
    "CUTS",
    "FFA",
    "NETS",
    "Architecture",
    "GaussianMean",
    "ImageArchitecture",
    "Module",
    "Shape",
    "SplitNet",
    "TokenArchitecture",
    "build",
    "dse_blocks",
    "ffa_layers",
    *NETS,
]
