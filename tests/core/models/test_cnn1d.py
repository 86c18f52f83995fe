"""The network for windows of readings: its shapes, and what it cannot be."""

import pytest
import torch

from shoal.core.errors import ConfigError
from shoal.core.models import cnn1d


@pytest.mark.parametrize(("channels", "length"), [(6, 128), (1, 16), (3, 50)])
def test_shapes(channels: int, length: int) -> None:
    model = cnn1d.build(channels, length, classes=5)
    windows = torch.zeros(2, channels, length)
    assert model.latent(windows).shape == (2, 128)
    assert model(windows).shape == (2, 5)


def test_a_window_that_is_shorter_than_the_network_reaches_is_refused() -> None:
    with pytest.raises(ConfigError, match="length"):
        cnn1d.build(length=8)
