"""LeNet-5 as the FLUX paper counts it: 62,006 parameters for 3-channel images of 28x28 and 10 classes.

Sources: LeCun et al., Gradient-based learning applied to document recognition (1998), section II.B; FLUX,
appendices B.2 and C.1.4. Unlike the original it has ReLUs and plain average pooling. The latent is the
flattened output of the convolutions (400 values at 28x28, 576 at 32x32): FLUX C.1.1 writes "final hidden
layer", but its tables were made with this one.
"""

from torch import nn

from shoal.core.models._stages import ImageStages, check_size


def build(channels: int = 1, size: int = 28, classes: int = 10) -> ImageStages:
    """channels: of the images; size: their height and width in pixels, 12 or more; classes: outputs."""
    check_size("channels", channels)
    check_size("size", size, lowest=12)
    check_size("classes", classes)
    side = (size // 2 - 4) // 2
    features = nn.Sequential(
        nn.Conv2d(channels, 6, kernel_size=5, padding=2),
        nn.ReLU(inplace=True),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, kernel_size=5),
        nn.ReLU(inplace=True),
        nn.AvgPool2d(2),
    )
    head = nn.Sequential(
        nn.Linear(16 * side * side, 120),
        nn.ReLU(inplace=True),
        nn.Linear(120, 84),
        nn.ReLU(inplace=True),
        nn.Linear(84, classes),
    )
    return ImageStages(features, head)
