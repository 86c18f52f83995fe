"""The convolutional network of LEAF's FEMNIST, which FedRC trains on Fashion-MNIST; 2.2 million weights.

Sources: Caldas et al., LEAF: A Benchmark for Federated Settings (2018); Guo et al., FedRC, H.7. Two
convolutions of width 5 without padding, each with a ReLU and pooling, and a layer of 2,048 units. FedRC
normalizes its images with `mean=0.1307, deviation=0.3081`. The latent is the flattened output of the
convolutions: 1,024 values at 28x28.
"""

from torch import nn

from shoal.core.models._stages import ImageStages, check_size
from shoal_lab.models._normalize import Normalize


def build(
    channels: int = 1, size: int = 28, classes: int = 10, mean: float = 0.0, deviation: float = 1.0
) -> ImageStages:
    """channels: of the images; size: their height and width in pixels, 16 or more; classes: outputs. mean,
    deviation: what the images are normalized with."""
    check_size("channels", channels)
    check_size("size", size, lowest=16)
    check_size("classes", classes)
    side = ((size - 4) // 2 - 4) // 2
    features = nn.Sequential(
        Normalize(mean, deviation),
        nn.Conv2d(channels, 32, kernel_size=5),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, kernel_size=5),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )
    width = 64 * side * side
    head = nn.Sequential(nn.Linear(width, 2048), nn.ReLU(inplace=True), nn.Linear(2048, classes))
    return ImageStages(features, head)
