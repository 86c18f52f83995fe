"""What an experiment has besides its devices: public images, and an encoder that is trained on them alone."""

from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from torch import Tensor

from shoal.core.data.dataset import Dataset
from shoal.core.device_kit.learner import Learner
from shoal.core.device_kit.samples import convert
from shoal.core.device_kit.train import train
from shoal.core.exchange.messages import TrainingSettings
from shoal.core.seeds import generator
from shoal.lab.datasets.pixels import unit

ENCODER = TrainingSettings(epochs=20, batch_size=32, learning_rate=0.02)
"""How an encoder is trained on public images."""


def public_part(data: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """So large a share of the rows, drawn at random, and the rest in its own order."""
    chosen = np.zeros(len(data), bool)
    count = round(share * len(data))
    chosen[generator(seed, "public").permutation(len(data))[:count]] = True
    return data.subset(chosen), data.subset(~chosen)


def encoder(learner: Learner, public: Dataset, channels: int, seed: int) -> Callable[[Tensor], Tensor]:
    """The latent of a network like the learner's, trained on public images and then frozen."""
    network = learner.module(seed)
    x = np.repeat(unit(public.x), channels, axis=1) if public.x.ndim == 3 else unit(public.x)
    train(learner, network, convert(Dataset(x, public.y), torch.device("cpu")), ENCODER, seed)
    return cast(Callable[[Tensor], Tensor], network.requires_grad_(False).eval().latent)
