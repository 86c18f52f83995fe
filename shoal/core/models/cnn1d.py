"""A small convolutional network for windows of sensor readings, x (B, channels, length).

Two convolutions of width 5 with ReLUs and pooling; the latent is the flattened output of the second, averaged
to 4 places in time: 128 values.
"""

from torch import nn

from shoal.core.models._stages import Stages, check_size


def build(channels: int = 6, length: int = 128, classes: int = 12) -> Stages:
    """channels: readings at a time; length: of a window, 16 or more; classes: outputs."""
    check_size("channels", channels)
    check_size("length", length, lowest=16)
    check_size("classes", classes)
    features = nn.Sequential(
        nn.Conv1d(channels, 16, kernel_size=5, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool1d(2),
        nn.Conv1d(16, 32, kernel_size=5, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool1d(length // 2 // 4),
        nn.AdaptiveAvgPool1d(4),
    )
    return Stages(features, nn.Linear(32 * 4, classes))
