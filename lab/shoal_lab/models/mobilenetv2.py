"""MobileNetV2 (Sandler et al., Inverted residuals and linear bottlenecks, 2018): 3,504,872 parameters for
1,000 classes, as published.

The strides of the paper divide the size by 32, which leaves one pixel of an image of 32; below 64 pixels the
first two strides are therefore left out, as is usual for CIFAR. The latent is the average over the last maps:
1,280 values. Dropout (0.2) stands before the output, and batch norm's running means, variances and counters
are part of the weights that travel. Weights are random: nothing is downloaded.
"""

from typing import cast

from torch import Tensor, nn

from shoal.core.models._stages import ImageStages, check_size

STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, output maps, blocks, stride of the first block (Table 2 of the paper)."""
SMALL = 64


class Inverted(nn.Module):
    """Expand, filter each map by itself, project; with a shortcut where the shape stays."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        first = [] if expansion == 1 else [_convolution(inputs, wide, 1)]
        self.block = nn.Sequential(
            *first,
            _convolution(wide, wide, 3, stride, groups=wide),
            nn.Conv2d(wide, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        found = cast(Tensor, self.block(x))
        return x + found if self.shortcut else found


def build(channels: int = 3, size: int = 32, classes: int = 10) -> ImageStages:
    """channels: of the images; size: their height and width in pixels, 8 or more; classes: outputs."""
    check_size("channels", channels)
    check_size("size", size, lowest=8)
    check_size("classes", classes)
    small = size < SMALL
    layers: list[nn.Module] = [_convolution(channels, 32, 3, 1 if small else 2)]
    inputs = 32
    for expansion, outputs, blocks, stride in STAGES:
        for number in range(blocks):
            first = 1 if small and outputs == 24 else stride
            layers.append(Inverted(inputs, outputs, first if number == 0 else 1, expansion))
            inputs = outputs
    features = nn.Sequential(*layers, _convolution(inputs, 1280, 1), nn.AdaptiveAvgPool2d(1))
    return ImageStages(features, nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, classes)))


def _convolution(inputs: int, outputs: int, width: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, width, stride, (width - 1) // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(inplace=True),
    )
