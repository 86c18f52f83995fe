"""Local training: the author's own, or plain SGD over data that lie ready as tensors."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shoal.core.device_kit.chance import seeded
from shoal.core.device_kit.failures import authors
from shoal.core.device_kit.learner import Learner, Loss
from shoal.core.device_kit.losses import loss_of
from shoal.core.device_kit.samples import Batches, Samples
from shoal.core.device_kit.steps import walk, weights_of
from shoal.core.errors import LearnerFault
from shoal.core.exchange.messages import TrainingSettings


def train(
    learner: Learner, model: nn.Module, samples: Samples, settings: TrainingSettings, seed: int
) -> float:
    """Train `model` where it is; the mean loss of the last epoch.

    On a processor, with the same number of threads, the same seed gives the same bits.

    Raises DeviceFault without labels, LearnerFault when the author's code fails or the loss does not stay
    finite.
    """
    batches = Batches(samples, settings.batch_size, seed)
    model.train()
    with seeded(seed, samples.x.device), authors("train()" if learner.train else "training"):
        if learner.train:
            loss = _finite(learner.train(model, batches, settings))
        else:
            loss = descend(model, batches, settings, loss_of(learner, samples))
    model.zero_grad(set_to_none=True)  # as large as the model: not to be kept until the next task
    return loss


def descend(
    model: nn.Module,
    batches: Batches,
    settings: TrainingSettings,
    loss: Loss,
    towards: Sequence[Tensor] | None = None,
) -> float:
    """SGD with momentum: `settings.epochs` passes over the batches; the mean loss of the last, by sample.

    For device halves with a loss of their own. towards: where the proximal term pulls to, for each weight
    that is trained; None: to where the network is now. Raises LearnerFault when the loss is NaN or infinite.
    """
    optimizer, pull = sgd(model, settings), Proximal(model, settings.proximal, towards)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        value = loss(model, x, y)
        value.backward()  # type: ignore[no-untyped-call]
        pull.add_to_gradients()
        optimizer.step()
        return value

    def forget() -> None:
        nonlocal optimizer
        if settings.restart_momentum:
            optimizer = sgd(model, settings)

    return walk(batches, settings.epochs, step, settings.learning_rate, between=forget)


class Proximal:
    """The gradient mu (w - w_0) of FedProx's term. w_0: the weights that are there now, or others; one copy
    of the weights at most, and none for a mu of 0."""

    def __init__(self, model: nn.Module, mu: float, towards: Sequence[Tensor] | None = None) -> None:
        self._mu = mu
        weights = weights_of(model) if mu else []
        start = [weight.detach().clone() for weight in weights] if towards is None or not mu else towards
        self._pairs = list(zip(weights, start, strict=True))

    def add_to_gradients(self) -> None:
        """Once the loss has given its own."""
        for weight, start in self._pairs:
            if weight.grad is not None:
                weight.grad.add_(weight.detach(), alpha=self._mu).sub_(start, alpha=self._mu)


def sgd(model: nn.Module, settings: TrainingSettings) -> torch.optim.SGD:
    """The optimiser that the settings ask for."""
    return torch.optim.SGD(
        model.parameters(),
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        fused=True,  # one kernel for all tensors: half the time of the others, on a processor too
    )


def _finite(loss: object) -> float:
    """What an author's train() returned, as a number."""
    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
        loss = loss.item()
    if not isinstance(loss, int | float) or not math.isfinite(loss):
        raise LearnerFault(
            f"train() returned {loss!r}", "return the mean loss of the last epoch, a finite number"
        )
    return float(loss)
