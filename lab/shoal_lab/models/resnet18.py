"""ResNet-18 (He et al., Deep residual learning for image recognition, 2016): 11,689,512 parameters for 1,000
classes, as published.

stem: "large" is the one of the paper, a convolution of width 7 with stride 2 and a pooling, for images of 64
pixels and more; "small" is a convolution of width 3 that keeps the size, the usual one for 32 pixels. The
latent is the average over the last maps: 512 values. Batch norm's running means, variances and counters are
part of the weights that travel. Weights are random: nothing is downloaded.
"""

from collections import OrderedDict
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from shoal.core.errors import ConfigError
from shoal.core.models._stages import ImageStages, check_size


class Block(nn.Module):
    """Two convolutions of width 3 around a shortcut, which has a convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.last_norm = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = self.last_norm(self.second(F.relu(self.norm(self.first(x)))))
        return F.relu(cast(Tensor, inner) + cast(Tensor, self.shortcut(x)))


def build(channels: int = 3, size: int = 32, classes: int = 10, stem: str = "") -> ImageStages:
    """channels: of the images; size: their height and width in pixels, 8 or more; classes: outputs. stem:
    "small", "large", or "" to choose by the size."""
    check_size("channels", channels)
    check_size("size", size, lowest=8)
    check_size("classes", classes)
    if stem not in ("", "small", "large"):
        raise ConfigError(f"stem is {stem!r}", "give small or large")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if (stem or ("large" if size >= 64 else "small")) == "large":
        layers["stem"] = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    else:
        layers["stem"] = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
    layers["norm"], layers["relu"] = nn.BatchNorm2d(64), nn.ReLU(inplace=True)
    if layers["stem"].stride == (2, 2):
        layers["pool"] = nn.MaxPool2d(3, stride=2, padding=1)
    inputs = 64
    for number, outputs in enumerate((64, 128, 256, 512)):
        layers[f"stage{number}"] = nn.Sequential(
            Block(inputs, outputs, 1 if number == 0 else 2), Block(outputs, outputs, 1)
        )
        inputs = outputs
    layers["mean"] = nn.AdaptiveAvgPool2d(1)
    return ImageStages(nn.Sequential(layers), nn.Linear(512, classes))
