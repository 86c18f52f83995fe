"""The readers' learner: an image of 64 gray values in, scores of the ten digits out; and a frozen encoder.

Shoal reads two names in this file: build and encoder. The encoder is not the network that is trained: it
comes in encoder.npz, is the same on all devices, and nothing here changes it. make_encoder.py made it, from
images that no device has.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

FROZEN = {
    name: torch.from_numpy(array)
    for name, array in np.load(Path(__file__).with_name("encoder.npz"), allow_pickle=False).items()
}
WHITE = 16  # of the scanner; 0 is black


def build() -> nn.Module:
    return nn.Sequential(Scale(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


class Scale(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / WHITE


def encoder(x: Tensor) -> Tensor:
    """(B, 64) gray values -> (B, 16): what an image shows."""
    frozen = {name: array.to(x) for name, array in FROZEN.items()}
    hidden = torch.relu(nn.functional.linear(x / WHITE, frozen["weight1"], frozen["bias1"]))
    return torch.relu(nn.functional.linear(hidden, frozen["weight2"], frozen["bias2"]))
