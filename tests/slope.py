"""The smallest learner there is, for rules that are checked by hand: one weight w, and a loss whose gradient is
known."""

import numpy as np
import torch
from torch import Tensor, nn

from fedcore.local.learner import Learner
from fedcore.types import Tensors

START: Tensors = {"w": np.array(3.0, np.float32)}


class Slope(nn.Module):
    """x (B, 1) -> w x (B,)."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x[:, 0]


def learner() -> Learner:
    """The loss is the mean of w x, whatever the labels: its gradient is the mean of x."""
    return Learner("slope", Slope, loss=lambda model, x, y: model(x).mean())
