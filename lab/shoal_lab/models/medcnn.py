"""The convolutional network that CORNFLQS trains on its medical images, OctMNIST and TissueMNIST.

Source: CORNFLQS, section 3.1: two convolutions (16 and 32 maps), max pooling and one fully connected layer
(128 units) before the output; the sizes are those of the authors' code. Images are normalized with 0.5. The
latent is the output of the pooling, flattened: 6,272 values at 28x28.
"""

from torch import nn

from shoal.core.models._stages import ImageStages, check_size
from shoal_lab.models._normalize import Normalize


def build(channels: int = 1, size: int = 28, classes: int = 4) -> ImageStages:
    """channels: of the images; size: their height and width in pixels, 4 or more; classes: outputs."""
    check_size("channels", channels)
    check_size("size", size, lowest=4)
    check_size("classes", classes)
    features = nn.Sequential(
        Normalize(0.5, 0.5),
        nn.Conv2d(channels, 16, kernel_size=3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )
    side = size // 2
    head = nn.Sequential(nn.Linear(32 * side * side, 128), nn.ReLU(inplace=True), nn.Linear(128, classes))
    return ImageStages(features, head)
