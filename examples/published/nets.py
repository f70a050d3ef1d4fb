"""Nets of public scripts that do not come with rayfl: from this folder, ``--net nets.CifarCNN``."""

from torch import Tensor, nn
from torch.nn.functional import leaky_relu, max_pool2d
from torchvision.models.resnet import BasicBlock, ResNet


class CifarCNN(nn.Module):
    """The net of FedPAC, pFedFDA and Floco for images of 3x32x32: 16, 32, 64, 128.

    107,690 parameters for 10 classes.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 5)
        self.conv2 = nn.Conv2d(16, 32, 5, padding=1)
        self.conv3 = nn.Conv2d(32, 64, 3, padding=1)
        self.fc = nn.Linear(64 * 3 * 3, 128)
        self.head = nn.Linear(128, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores, [B, classes], of images [B, 3, 32, 32]."""
        for conv in (self.conv1, self.conv2, self.conv3):
            x = max_pool2d(leaky_relu(conv(x)), 2)
        return self.head(leaky_relu(self.fc(x.flatten(1))))


def ResNet10(num_classes: int) -> nn.Module:
    """Return FedDHP's net: four blocks, and a first convolution of 3x3 without stride and pooling."""
    net = ResNet(BasicBlock, [1, 1, 1, 1], num_classes)
    net.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    net.maxpool = nn.Identity()
    return net


def ResNet8(num_classes: int) -> nn.Module:
    """Return FedDecomp's net without its low-rank parts: three blocks, and the stem for large images."""
    net = ResNet(BasicBlock, [1, 1, 1, 1], num_classes)
    net.layer4 = nn.Identity()
    net.fc = nn.Linear(256, num_classes)
    return net
