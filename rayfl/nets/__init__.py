"""Architectures: classes that build a ``SplitNet`` for the images at hand."""

from rayfl.nets.alexnet import AlexNet
from rayfl.nets.backbones import DenseNet121, EfficientNetB0, MobileNetV2
from rayfl.nets.base import Architecture
from rayfl.nets.convolutional import CNN, CNNB, DigitModel, FedAvgCNN, FedGHCNN, LeNet
from rayfl.nets.dse import DSECNN, DSEResNet50, DSEViT, FDSEAlexNet, dse_blocks
from rayfl.nets.own import build
from rayfl.nets.resnet import ResNet18, ResNet50
from rayfl.nets.split import CUTS, Shape, SplitNet
from rayfl.nets.vit import ViT

NETS: dict[str, type[Architecture]] = {
    n.__name__: n
    for n in (
        *(LeNet, CNN, CNNB, DigitModel, FedAvgCNN, FedGHCNN, AlexNet, FDSEAlexNet, DSECNN),
        *(ResNet18, ResNet50, DSEResNet50, ViT, DSEViT, MobileNetV2, EfficientNetB0, DenseNet121),
    )
}
"""The nets that come with rayfl, by name."""

__all__ = [
    "CNN",
    "CNNB",
    "CUTS",
    "DSECNN",
    "NETS",
    "AlexNet",
    "Architecture",
    "DSEResNet50",
    "DSEViT",
    "DenseNet121",
    "DigitModel",
    "EfficientNetB0",
    "FDSEAlexNet",
    "FedAvgCNN",
    "FedGHCNN",
    "LeNet",
    "MobileNetV2",
    "ResNet18",
    "ResNet50",
    "Shape",
    "SplitNet",
    "ViT",
    "build",
    "dse_blocks",
]
