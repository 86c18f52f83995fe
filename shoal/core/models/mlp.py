"""A multi-layer perceptron. Its input is flattened; its latent is the last hidden layer.

With `hidden=[200]` it is the network of CORNFLQS's MNIST experiments (section 3.1). Its authors had
`activation="none"`, which makes it a linear model.
"""

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from shoal.core.errors import ConfigError
from shoal.core.models._stages import Stages, check_size


def build(
    inputs: int = 784, hidden: Sequence[int] = (128, 64), classes: int = 10, activation: str = "relu"
) -> Stages:
    """inputs: values per sample; hidden: widths of the hidden layers, maybe (); classes: outputs.

    activation: between layers, "relu" or "none".
    """
    if activation not in ("relu", "none"):
        raise ConfigError(f"activation is {activation!r}", "give relu or none")
    if not isinstance(hidden, list | tuple):
        raise ConfigError(f"hidden is {hidden!r}", "give a list of widths, such as [128, 64]")
    for option, value in (("inputs", inputs), *(("hidden", width) for width in hidden), ("classes", classes)):
        check_size(option, value)
    layers: list[nn.Module] = [nn.Flatten()]
    for width, next_width in pairwise((inputs, *hidden)):
        layers.append(nn.Linear(width, next_width))
        if activation == "relu":
            layers.append(nn.ReLU(inplace=True))
    return Stages(nn.Sequential(*layers), nn.Linear((inputs, *hidden)[-1], classes))
