"""Training step by step, for `shoal.core.device_kit.train` and for algorithms that make steps of their
own."""

import math
from collections.abc import Callable
from itertools import islice

import torch
from torch import Tensor, nn

from shoal.core.device_kit.learner import Learner
from shoal.core.device_kit.samples import Batches
from shoal.core.errors import LearnerFault

Step = Callable[[Tensor, Tensor], Tensor]
"""From a batch, x (B, ...) and y (B,), to the loss on it: the mean by sample, shape ()."""


def walk(
    batches: Batches,
    epochs: int,
    step: Step,
    rate: float,
    at_most: int = 0,
    between: Callable[[], None] = lambda: None,
) -> float:
    """One step on each batch of so many epochs; the mean of the losses of the last of them, by sample.

    rate: of learning, for the error. at_most: steps after which to stop, be the epochs over or not; where
    they do not suffice, there are more of them. 0: as many as the epochs have. between: called between
    epochs. Raises LearnerFault when the loss is NaN or infinite.
    """
    left, epoch, mean = at_most or epochs * len(batches), 0, 0.0
    epochs = -(-left // len(batches))
    while left > 0:
        epoch += 1
        total, seen = torch.zeros((), device=batches.samples.x.device), 0
        for x, y in islice(batches, left):
            total.add_(step(x, y).detach(), alpha=len(x))
            seen += len(x)
            left -= 1
        # Once per epoch, for reading a number makes a GPU wait.
        mean = total.item() / seen
        if not math.isfinite(mean):
            raise LearnerFault(
                f"the loss became {mean} in epoch {epoch} of {epochs}",
                f"lower learning_rate (it is {rate}), or look at the data's scale",
            )
        if left > 0:
            between()
    return mean


def weights_of(model: nn.Module) -> list[nn.Parameter]:
    """What is trained of a network, in its order: not its buffers, nor what its author has frozen."""
    return [weight for weight in model.parameters() if weight.requires_grad]


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor]:
    """Those of `loss` for `weights_of(model)`; zero where it does not depend on one."""
    found = torch.autograd.grad(loss, weights_of(model), allow_unused=True, materialize_grads=True)
    return list(found)


def refuse_own_training(learner: Learner, algorithm: str) -> None:
    """Raise LearnerFault where the learner brings a train(), of which such an algorithm has no use."""
    if learner.train is not None:
        raise LearnerFault(
            f"{algorithm} takes steps of its own, and {learner.name} has a train()",
            "leave it out, and give what it minimises as loss()",
        )
