"""ResNet-9 as the FLUX paper counts it: 6,775,140 parameters for 3-channel images of 32x32 and 100 classes.

Sources: He et al., Deep residual learning for image recognition (2016), in the nine-layer shape known from
the DAWNBench entries; FLUX, appendices B.2 and C.1.4. The latent is the flattened output of the last pooling:
512 values at 28x28, 2,048 at 32x32, 8,192 at 64x64. Batch norm's running means, variances and counters are
part of the weights that travel.
"""

from typing import cast

from torch import Tensor, nn

from shoal.core.models._stages import ImageStages, check_size


class Residual(nn.Module):
    """x + block(x), for a block that keeps the shape."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        return x + cast(Tensor, self.block(x))


def build(channels: int = 3, size: int = 32, classes: int = 100) -> ImageStages:
    """channels: of the images; size: their height and width in pixels, 16 or more; classes: outputs."""
    check_size("channels", channels)
    check_size("size", size, lowest=16)
    check_size("classes", classes)
    side = size // 16
    features = nn.Sequential(
        _convolution(channels, 64),
        _convolution(64, 128, pool=True),
        Residual(nn.Sequential(_convolution(128, 128), _convolution(128, 128))),
        _convolution(128, 256, pool=True),
        _convolution(256, 512, pool=True),
        Residual(nn.Sequential(_convolution(512, 512), _convolution(512, 512))),
        nn.MaxPool2d(2),
    )
    return ImageStages(features, nn.Linear(512 * side * side, classes))


def _convolution(inputs: int, outputs: int, pool: bool = False) -> nn.Sequential:
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel_size=3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    ]
    return nn.Sequential(*layers, nn.MaxPool2d(2)) if pool else nn.Sequential(*layers)
