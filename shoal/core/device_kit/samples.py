"""Data as a network takes them: tensors, converted once, on the device that computes.

An author's `train(model, batches, settings)` gets `Batches`, and `evaluate(model, samples)` gets `Samples`:

    for epoch in range(settings.epochs):
        for x, y in batches:                      # x: (B, ...), y: (B,); each pass is one epoch
            ...
    scores = model(samples.x)                     # (n, C), to compare with samples.y, (n,)

Both come in the run's scale (`shoal.core.data.scale`), if the run has one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from shoal.core.data.arrays import network_input
from shoal.core.data.dataset import Dataset
from shoal.core.errors import DeviceFault

PASS = 256
"""Samples at a time when nothing is trained. It changes speed and memory, not results."""


@dataclass(frozen=True, eq=False)
class Samples:
    """x: (n, ...) float32 or int64. y: (n,) int64, or None. classes: highest label + 1, 0 without labels.

    targets: (n,) float32 where the labels are numbers and not classes; y is then 0 for all of them.
    """

    x: Tensor
    y: Tensor | None
    classes: int
    targets: Tensor | None = None

    def __len__(self) -> int:
        return len(self.x)

    @property
    def labels(self) -> Tensor:
        """y. Raises DeviceFault where there are no labels."""
        if self.y is None:
            raise DeviceFault("this needs labels, and the device's data have none", "give the data a y")
        return self.y

    def labels_for(self, what: str) -> Tensor:
        """y. Raises DeviceFault, which says what needs labels, where there are none."""
        if self.y is None:
            raise DeviceFault(
                f"{what} needs labels, and the data have none",
                "label some samples, or ask a run that places devices without labels, such as one with flux",
            )
        return self.y

    @property
    def goals(self) -> Tensor:
        """What a model is trained toward: the targets, or the classes. Raises DeviceFault without labels."""
        return self.labels if self.targets is None else self.targets

    def copied(self, rows: slice = slice(None)) -> Tensor:
        """x of these rows, for an author's code, which may compute in place: the samples often share their
        memory with the owner's data."""
        return self.x[rows].clone()

    def passes(self) -> Iterator[slice]:
        """Slices over all samples, in order, of at most PASS samples each."""
        for start in range(0, len(self), PASS):
            yield slice(start, min(start + PASS, len(self)))


def convert(data: Dataset, device: torch.device) -> Samples:
    """The samples of a data set. Memory is shared if the types allow it and the device is the CPU.

    Floating-point numbers become float32. uint8 is read as pixels and becomes float32 in 0 to 1, as in
    torchvision's ToTensor, without any other normalization. Other integers, such as tokens, become int64.

    Raises DataFault on NaN, on infinity and on things that are not numbers.
    """
    x = torch.from_numpy(network_input(data.x))
    if data.y is None:
        return Samples(x.to(device), None, 0)
    if data.y.dtype.kind == "f":
        targets = torch.from_numpy(np.require(data.y, np.float32, ["C", "W"])).to(device)
        return Samples(x.to(device), torch.zeros(len(x), dtype=torch.int64, device=device), 1, targets)
    y = torch.from_numpy(np.require(data.y, np.int64, ["C", "W"]))
    return Samples(x.to(device), y.to(device), int(data.y.max(initial=-1)) + 1)


class Batches:
    """Batches for training: each pass over it is one epoch, in a new order.

    The orders depend only on the seed and the number of samples: not on the device, nor on any other use of
    random numbers. The last batch of an epoch may be smaller than `size`.

    model: the network that is trained. Batch norm refuses a batch of one sample, so where it has such layers,
    a last sample that is left over joins the batch before.

    Example:
        for x, y in Batches(samples, size=32, seed=0): ...
    """

    def __init__(self, samples: Samples, size: int, seed: int, model: nn.Module | None = None) -> None:
        self.samples = samples
        self.size = size
        self._goals = samples.goals
        self._chance = torch.Generator().manual_seed(seed)
        self._starts = range(0, len(samples), size)
        normed = model is not None and any(isinstance(layer, _BatchNorm) for layer in model.modules())
        if normed and len(samples) > size and len(samples) % size == 1:
            self._starts = self._starts[:-1]

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return len(self._starts)

    def order(self) -> Tensor:
        """(n,) the numbers of the samples in the order of the next epoch, on the processor."""
        return torch.randperm(len(self.samples), generator=self._chance)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = self.samples.x, self._goals
        order = self.order().to(x.device)
        for start, end in pairwise([*self._starts, len(order)]):
            rows = order[start:end]
            yield x.index_select(0, rows), y.index_select(0, rows)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Inside, torch's global generators start from `seed`; afterwards they continue as if nothing had
    happened.

    device: if it is a GPU, its generator is seeded too; the CPU's always is.
    """
    gpus = [torch.cuda.current_device()] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.default_generator.manual_seed(seed)
        if gpus:
            torch.cuda.manual_seed(seed)
        yield
