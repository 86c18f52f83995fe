"""Small learners and data, and one thread: sums over threads may differ in their last bits."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import Learner, builtin

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine")
DEVICES = ["cpu", pytest.param("cuda", marks=NO_GPU)]


def blobs(count: int, classes: int = 3, width: int = 4) -> Dataset:
    """`count` points around `classes` centers, easy to tell apart."""
    chance = np.random.default_rng(0)
    y = np.arange(count) % classes
    x = 3 * np.eye(classes, width)[y] + chance.normal(size=(count, width))
    return Dataset(x.astype(np.float32), y)


def small() -> Learner:
    """4 inputs -> 5 -> 3 classes."""
    return builtin("mlp", {"inputs": 4, "hidden": (5,), "classes": 3})


def context_of(
    learner: Learner | None = None, data: Dataset | None = None, device: str = "cpu", seed: int = 1
) -> DeviceContext:
    views = Views.of(blobs(50) if data is None else data)
    return DeviceContext(learner or small(), views, device, seed, np.random.default_rng(0))


class Slope(nn.Module):
    """One weight w, from 0: x (B, 1) -> w x (B, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w


def mean_output(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A loss whose gradient is the mean of x, whatever the weight: steps can be followed by hand."""
    output: Tensor = model(x)
    return output.mean()


def failing(*_: object) -> float:
    raise RuntimeError("the author's own words")
