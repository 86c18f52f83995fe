"""A small fleet for the tests of the API: wards whose data are of two kinds, and a network for them."""

from typing import Any

import numpy as np
import torch
from torch import nn

import shoal

SMALL = {"learning_rate": 0.1, "batch_size": 8}


class Net(nn.Module):
    """A network with a submodule `hidden`, as a user writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(4, 16), nn.ReLU())
        self.head = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.hidden(x))


def ward(number: int, samples: int = 60) -> tuple[Any, Any]:
    """Odd wards measure on another scale than even ones."""
    chance = np.random.default_rng(number)
    x = chance.normal(size=(samples, 4)).astype(np.float32)
    y = (x[:, 0] > x[:, 1]).astype(np.int64)
    return x + 4.0 * (number % 2), y


def fleet(count: int = 4) -> "shoal.Fleet":
    return shoal.Fleet({f"ward-{number}": ward(number) for number in range(count)})
