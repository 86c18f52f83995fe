"""Local training: the author's own, or plain descent over data that are already tensors."""

import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from shoal.core.device_kit.evaluation.evaluate import loss_of
from shoal.core.device_kit.learner import Learner, Loss, authors
from shoal.core.device_kit.samples import Batches, Samples, seeded
from shoal.core.device_kit.training.fit import fitted
from shoal.core.device_kit.training.optimizers import optimizer_of
from shoal.core.errors import LearnerFault, diverged
from shoal.core.exchange.messages import TrainingSettings

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
    """One step on each batch, for `epochs` epochs; returns the mean loss of the last epoch, by sample.

    rate: of learning, for the error. at_most: steps after which to stop, be the epochs over or not; where
    they do not suffice, there are more of them. 0: as many as the epochs have. between: called between
    epochs. Raises Diverged when the loss is NaN or infinite.
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
        # Once per epoch, because reading a number makes a GPU wait.
        mean = total.item() / seen
        if not math.isfinite(mean):
            raise diverged(f"the loss became {mean} in epoch {epoch} of {epochs}", rate)
        if left > 0:
            between()
    return mean


def weights_of(model: nn.Module) -> list[nn.Parameter]:
    """What is trained of a network, in its order: not its buffers, nor what its author has frozen."""
    return [weight for weight in model.parameters() if weight.requires_grad]


def train(
    learner: Learner, model: nn.Module, samples: Samples, settings: TrainingSettings, seed: int
) -> float:
    """Train `model` where it is; the mean loss of the last epoch.

    On a processor, with the same number of threads, the same seed gives the same bits.

    Raises DeviceFault without labels, LearnerFault when the author's code fails, Diverged when the loss or
    the weights do not stay finite.
    """
    return TRAINER.get()(TrainingJob(learner, model, samples, settings, seed))


@dataclass(frozen=True, eq=False)
class TrainingJob:
    """What `train` was asked for. model: trained where it is."""

    learner: Learner
    model: nn.Module
    samples: Samples
    settings: TrainingSettings
    seed: int


def alone(job: TrainingJob) -> float:
    """`train`, here and now."""
    learner, model, samples, seed = job.learner, job.model, job.samples, job.seed
    settings = fitted(job.settings, len(samples))
    batches = Batches(samples, settings.batch_size, seed, model)
    model.train()
    with seeded(seed, samples.x.device), authors("train()" if learner.train else "training"):
        try:
            if learner.train:
                loss = _finite(learner.train(model, batches, settings))
            else:
                loss = descend(model, batches, settings, loss_of(learner, samples))
        finally:
            model.zero_grad(set_to_none=True)  # of an author's own training, too
    check_weights(model, settings.learning_rate)
    return loss


TRAINER: ContextVar[Callable[[TrainingJob], float]] = ContextVar("trainer", default=alone)
"""Does what `train` is asked for. A simulation lets devices wait here, and trains several at once."""


def check_weights(model: nn.Module, rate: float) -> None:
    """Raise Diverged if training has left NaN or infinity in the network: its last step may have, where the
    loss before it was a number."""
    for name, values in model.state_dict().items():
        if values.is_floating_point() and not _are_finite(values):
            raise diverged(f"the weights {name!r} are NaN or infinite", rate)


def _are_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite. Their sum says so at a fraction of the cost of a look at each of
    them, unless it overflows."""
    return bool(torch.isfinite(values.sum())) or bool(torch.isfinite(values).all())


def descend(
    model: nn.Module,
    batches: Batches,
    settings: TrainingSettings,
    loss: Loss,
    towards: Sequence[Tensor] | None = None,
) -> float:
    """`settings.epochs` passes of the optimizer over the batches; the mean loss of the last, by sample.

    For device halves with a loss of their own. towards: where the proximal term pulls to, for each weight
    that is trained; None: to where the network is now. Raises Diverged when the loss is NaN or infinite, and
    LearnerFault where nothing is to be trained.
    """
    optimizer, pull = optimizer_of(model, settings), Proximal(model, settings.proximal, towards)
    trained = weights_of(model)  # to look for them in each step takes a small network a tenth of its time

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        value = loss(model, x, y)
        if not value.requires_grad:
            raise LearnerFault(
                "the loss depends on no weight that may be trained",
                "leave some weights unfrozen (requires_grad), and torch.no_grad() out of the network",
            )
        value.backward()  # type: ignore[no-untyped-call]
        pull.add_to_gradients()
        if settings.clip_norm:
            clip(trained, settings.clip_norm)
        optimizer.step()
        return value

    def forget() -> None:
        nonlocal optimizer
        if settings.restart_momentum:
            optimizer = optimizer_of(model, settings)

    try:
        return walk(batches, settings.epochs, step, settings.learning_rate, between=forget)
    finally:  # gradients are as large as the model: not to be kept until the next task
        optimizer.zero_grad()


@torch.no_grad()
def clip(weights: Sequence[nn.Parameter], most: float) -> None:
    """`nn.utils.clip_grad_norm_`, bit for bit, which spends most of its time on small networks elsewhere:
    gradients of one type on one device need no sorting."""
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    kinds = {(each.dtype, each.device, each.layout) for each in gradients}
    if len(kinds) != 1 or gradients[0].is_sparse:
        nn.utils.clip_grad_norm_(weights, most)
        return
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients, 2.0)), 2.0)
    torch._foreach_mul_(gradients, torch.clamp(most / (norm + 1e-6), max=1.0))


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


def _finite(loss: object) -> float:
    """What an author's train() returned, as a number."""
    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
        loss = loss.item()
    if not isinstance(loss, int | float) or not math.isfinite(loss):
        raise LearnerFault(
            f"train() returned {loss!r}", "return the mean loss of the last epoch, a finite number"
        )
    return float(loss)
