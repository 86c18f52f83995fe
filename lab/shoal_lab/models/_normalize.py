"""Images are brought to a mean and a deviation first, as some published networks have it."""

from torch import Tensor, nn

from shoal.core.errors import ConfigError


class Normalize(nn.Module):
    """(x - mean) / deviation. It has no weights."""

    def __init__(self, mean: float, deviation: float) -> None:
        super().__init__()
        if not deviation > 0.0:
            raise ConfigError(f"deviation is {deviation}", "give a number above 0")
        self.mean, self.deviation = mean, deviation

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.deviation
