"""What all networks here share: two stages, and the check of their sizes."""

from typing import cast

from torch import Tensor, nn

from shoal.core.errors import ConfigError


class Stages(nn.Module):
    """`features` make a sample's latent values, `head` makes its class scores from them."""

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.head = head

    def latent(self, x: Tensor) -> Tensor:
        """x (B, ...) -> (B, v): the output of `features`, flattened."""
        return cast(Tensor, self.features(x)).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, ...) -> class scores (B, C), before any softmax."""
        return cast(Tensor, self.head(self.latent(x)))


class ImageStages(Stages):
    """Stages for images: x (B, channels, h, w), or (B, h, w) where there is one channel."""

    def latent(self, x: Tensor) -> Tensor:
        return super().latent(x.unsqueeze(1) if x.ndim == 3 else x)


def check_size(option: str, value: int, lowest: int = 1) -> None:
    """Raise ConfigError unless the option is a whole number of at least `lowest`."""
    if type(value) is not int or value < lowest:
        raise ConfigError(f"{option} is {value!r}", f"give a whole number of at least {lowest}")
