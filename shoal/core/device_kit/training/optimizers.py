"""The optimizers that the settings of a training task can name."""

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from shoal.core.exchange.messages import TrainingSettings


class Optimizer(Protocol):
    """What training needs of an optimizer, as the optimizers of PyTorch have it."""

    def zero_grad(self) -> None: ...

    def step(self) -> object: ...


class Weights:
    """What an optimizer moves.

    PyTorch's optimizer classes import its compiler when the first of them is made. That takes a device nearly
    as long as the import of PyTorch itself, and 70 MB of memory, and nothing here uses the compiler. The
    functions that compute a step do not need it.
    """

    def __init__(self, weights: Iterable[Tensor]) -> None:
        self._weights = list(weights)

    def zero_grad(self) -> None:
        """Drop the gradients, so that no memory is kept for them."""
        for weight in self._weights:
            weight.grad = None


class SGD(Weights):
    """`torch.optim.SGD` with `fused=True`, bit for bit."""

    def __init__(self, weights: Iterable[Tensor], rate: float, momentum: float, decay: float) -> None:
        super().__init__(weights)
        self._rate, self._momentum, self._decay = rate, momentum, decay
        self._velocities: dict[Tensor, Tensor | None] = {}

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


class Adam(Weights):
    """`torch.optim.Adam` with `fused=True`, bit for bit; `torch.optim.AdamW` if decoupled.

    decoupled: the decay shrinks the weights themselves, in place of being added to the gradient.
    """

    def __init__(self, weights: Iterable[Tensor], rate: float, decay: float, *, decoupled: bool) -> None:
        super().__init__(weights)
        self._rate, self._decay, self._move = rate, decay, adamw if decoupled else adam
        self._moments: dict[Tensor, tuple[Tensor, Tensor, Tensor]] = {}

    @torch.no_grad()
    def step(self) -> None:
        """Move each weight that has a gradient."""
        moved = [weight for weight in self._weights if weight.grad is not None]
        for weight in moved:
            if weight not in self._moments:
                count = torch.zeros((), dtype=torch.float32, device=weight.device)
                self._moments[weight] = (torch.zeros_like(weight), torch.zeros_like(weight), count)
        moments = [self._moments[weight] for weight in moved]
        self._move(
            moved,
            [weight.grad for weight in moved if weight.grad is not None],
            [first for first, _, _ in moments],
            [second for _, second, _ in moments],
            [],
            [count for _, _, count in moments],
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self._rate,
            weight_decay=self._decay,
            eps=1e-8,
            maximize=False,
        )


def optimizer_of(model: nn.Module, settings: TrainingSettings) -> Optimizer:
    """The optimizer that the settings ask for, which remembers nothing yet."""
    weights, rate, decay = model.parameters(), settings.learning_rate, settings.weight_decay
    if settings.optimizer in ("adam", "adamw"):
        return Adam(weights, rate, decay, decoupled=settings.optimizer == "adamw")
    return SGD(weights, rate, settings.momentum, decay)
