"""Train the encoder that comes with this example, and write it to encoder.npz: 16 values for an image.

It learns to tell the ten digits apart on the 500 public images of split.py; its last layer but one is the
encoder. With images of your own, take a large network that someone has trained on public ones instead.
"""

from pathlib import Path

import numpy as np
import torch
from split import public
from torch import nn

EPOCHS, BATCH = 60, 25


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10))
    x, y = (torch.from_numpy(array) for array in public())
    x = (x / 16).float()
    steps = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(BATCH):
            steps.zero_grad()
            nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()
            steps.step()
    frozen = {
        f"{kind}{number}": getattr(network[2 * number - 2], kind).detach().numpy()
        for number in (1, 2)
        for kind in ("weight", "bias")
    }
    path = Path(__file__).with_name("encoder.npz")
    np.savez(path, **frozen)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
