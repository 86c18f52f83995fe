"""The optimizers that the settings of a training task can name."""

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from shoal.core.exchange.messages import TrainingSettings


class Optimizer(Protocol):
    """What training needs of an optimizer, as the optimizers of PyTorch have it."""

    def zero_grad(self, set_to_none: bool = True) -> None: ...

    def step(self) -> object: ...


class SGD:
    """`torch.optim.SGD` with `fused=True`, bit for bit.

    PyTorch's optimizer classes import its compiler when the first of them is made. That takes a device nearly
    as long as the import of PyTorch itself, and 70 MB of memory, and nothing here uses the compiler. The
    function that computes a step does not need it.
    """

    def __init__(self, weights: Iterable[Tensor], rate: float, momentum: float, decay: float) -> None:
        self._weights, self._rate, self._momentum, self._decay = list(weights), rate, momentum, decay
        self._velocities: dict[Tensor, Tensor | None] = {}

    def zero_grad(self, set_to_none: bool = True) -> None:
        for weight in self._weights:
            if set_to_none:
                weight.grad = None
            elif weight.grad is not None:
                weight.grad.zero_()

    def step(self) -> None:
        """Move each weight that has a gradient."""
        moved = [weight for weight in self._weights if weight.grad is not None]
        first = [weight for weight in moved if weight not in self._velocities]
        self._move([weight for weight in moved if weight in self._velocities])
        self._move(first)

    @torch.no_grad()
    def _move(self, weights: list[Tensor]) -> None:
        """Move weights that all take their first step, or that all have taken one."""
        velocities = [self._velocities.get(weight) for weight in weights]
        sgd(
            weights,
            [weight.grad for weight in weights if weight.grad is not None],
            velocities if self._momentum else [],
            fused=True,  # one kernel for all tensors takes half the time of the others, on a processor too
            weight_decay=self._decay,
            momentum=self._momentum,
            lr=self._rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        self._velocities.update(zip(weights, velocities, strict=True))


def optimizer_of(model: nn.Module, settings: TrainingSettings) -> Optimizer:
    """The optimizer that the settings ask for, which remembers nothing yet."""
    weights, rate, decay = model.parameters(), settings.learning_rate, settings.weight_decay
    if settings.optimizer == "adam":
        return torch.optim.Adam(weights, lr=rate, weight_decay=decay, fused=True)
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(weights, lr=rate, weight_decay=decay, fused=True)
    return SGD(weights, rate, settings.momentum, decay)
