"""The smallest learners there are, for rules that are checked by hand: one weight, and a known gradient."""

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import Learner
from shoal.core.types import Tensors


class OneWeight(nn.Module):
    """x (B, 1) -> class scores (B, 2): w, and 0."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.w.expand(len(x))
        return torch.stack([scores, torch.zeros_like(scores)], 1)


def slope() -> Learner:
    """The loss is w times the mean of x: its gradient is the mean of x."""
    return Learner("slope", OneWeight, loss=lambda model, x, y: model.w * x.mean())  # type: ignore[operator]


def bowl() -> Learner:
    """The loss is half the mean of (w - x)^2: its gradient is w minus the mean of x."""
    return Learner("bowl", OneWeight, loss=lambda model, x, y: ((model.w - x) ** 2).mean() / 2)  # type: ignore[operator]


def coin() -> Learner:
    """Class 0 has the probability 1 / (1 + exp(-w)), whatever the sample; the loss is cross-entropy."""
    return Learner("coin", OneWeight)


def at(value: float) -> Tensors:
    """A model with that weight."""
    return {"w": np.array(value, np.float32)}


def context(learner: Learner, value: float = 1.0, samples: int = 1, seed: int = 0) -> DeviceContext:
    """Of a device whose samples are all that value, of class 0. It has a test part of the same."""
    data = Dataset(np.full((samples, 1), value, np.float32), np.zeros(samples, np.int64))
    return DeviceContext(
        learner, Views(data, data.subset(slice(0, 0)), data), "cpu", seed, np.random.default_rng(0)
    )
