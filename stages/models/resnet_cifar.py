"""The residual network for small images of He et al. 2016 (arXiv:1512.03385, section 4.2): depth 6n + 2."""

import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut; a projection (1x1) where the shape changes.

    The paper pads the shortcut with zeros instead; a projection is what structured pruning can follow.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, images: Tensor) -> Tensor:
        """(N, inputs, H, W) -> (N, outputs, ceil(H / stride), ceil(W / stride))."""
        hidden = F.relu(self.bn1(self.conv1(images)))
        return F.relu(self.bn2(self.conv2(hidden)) + self.shortcut(images))


class ResNet(nn.Module):
    """Three groups of n blocks with width, 2 width and 4 width channels, then a mean over the image."""

    def __init__(self, channels: int, classes: int, blocks: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        layers: list[nn.Module] = []
        inputs = width
        for group in range(3):
            outputs = width * 2**group
            for block in range(blocks):
                layers.append(BasicBlock(inputs, outputs, stride=2 if group and not block else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*layers)
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Normalised (N, C, H, W) -> logits (N, classes)."""
        hidden = self.blocks(F.relu(self.bn(self.conv(images))))
        logits: Tensor = self.fc(hidden.mean(dim=(2, 3)))
        return logits


def resnet_cifar(input_shape: tuple[int, ...], classes: int, depth: int = 20, width: int = 16) -> nn.Module:
    """A residual network for images of any size and number of channels.

    `depth` is 6n + 2 (8, 14, 20, ...), `width` the channels of the first group. Raises `ValueError`.
    """
    if len(input_shape) != 3:
        raise ValueError(f"resnet_cifar takes images (H, W, C), the data has shape {input_shape}; use 'mlp' for rows")
    if not isinstance(depth, int) or depth < 8 or (depth - 2) % 6:
        raise ValueError(f"depth must be 6n + 2 (8, 14, 20, 26, ...), got {depth!r}")
    if not isinstance(width, int) or width < 1:
        raise ValueError(f"width must be a whole number from 1 up, got {width!r}")
    return ResNet(channels=input_shape[2], classes=classes, blocks=(depth - 2) // 6, width=width)
