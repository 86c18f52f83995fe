"""A transformer whose weights are random and stay so, with small adapters that train.

An image of a digit is read as eight rows, each a token. The run's parameter `trainable` names the adapters
and the head; all else reaches each device once and never leaves it.
"""

import torch
from torch import Tensor, nn

WIDTH, LAYERS, HEADS, RANK = 64, 4, 4, 8

latent = "body"  # the mean of the tokens, which describes an image


class Adapter(nn.Module):
    """x + up(relu(down(x))). It begins as x (Houlsby et al., ICML 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(WIDTH, RANK), nn.Linear(RANK, WIDTH)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.up(torch.relu(self.down(x)))


class Block(nn.Module):
    """Attention and a network for each token, and an adapter after each of the two."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project, self.merge = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.adapter_first, self.adapter_second = Adapter(), Adapter()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.adapter_first(self.attended(self.first(x)))
        return x + self.adapter_second(self.wide(self.second(x)))

    def attended(self, x: Tensor) -> Tensor:
        parts = self.project(x).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        query, key, value = (each.transpose(1, 2) for each in parts.unbind(2))
        weights = torch.softmax(query @ key.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5, -1)
        return self.merge((weights @ value).transpose(1, 2).flatten(2))


class Body(nn.Module):
    """(B, 8, 8) -> (B, 64)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Linear(8, WIDTH), nn.Parameter(torch.randn(8, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.last = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.blocks(self.embed(x) + self.places)).mean(1)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Body(), nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def build() -> nn.Module:
    return Classifier()
