"""The clinics' learner: 30 measurements of a patient's cells in, scores of benign (0) and malignant (1) out.

Shoal reads three names in this file: build, latent and loss.
"""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# The range of each measurement, as the data set's description publishes it: ten features, of each the mean,
# the standard error and the worst. Fixed numbers, so that all clinics scale alike, whatever their data are.
LOWEST = [
    [6.981, 9.71, 43.79, 143.5, 0.053, 0.019, 0.0, 0.0, 0.106, 0.05],
    [0.112, 0.36, 0.757, 6.802, 0.002, 0.002, 0.0, 0.0, 0.008, 0.001],
    [7.93, 12.02, 50.41, 185.2, 0.071, 0.027, 0.0, 0.0, 0.156, 0.055],
]
HIGHEST = [
    [28.11, 39.28, 188.5, 2501.0, 0.163, 0.345, 0.427, 0.201, 0.304, 0.097],
    [2.873, 4.885, 21.98, 542.2, 0.031, 0.135, 0.396, 0.053, 0.079, 0.03],
    [36.04, 49.54, 251.2, 4254.0, 0.223, 1.058, 1.252, 0.291, 0.664, 0.208],
]
RANGES = torch.tensor([LOWEST, HIGHEST]).flatten(1)


class Scale(nn.Module):
    """Published range to -1 ... 3. Most patients lie near a quarter of it, and so near 0."""

    def forward(self, x: Tensor) -> Tensor:
        lowest, highest = RANGES.to(x)
        return 4 * (x - lowest) / (highest - lowest) - 1


def build() -> nn.Module:
    hidden = nn.Sequential(nn.Linear(30, 32), nn.ReLU())
    return nn.Sequential(OrderedDict(scale=Scale(), hidden=hidden, scores=nn.Linear(32, 2)))


latent = "hidden"  # the part of the network whose output describes a clinic's data


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy in which a malignant patient counts twice: missing one is the worse mistake."""
    return F.cross_entropy(model(x), y, weight=x.new_tensor([1.0, 2.0]))
