"""Training with a guarantee for each sample: DP-SGD (Abadi et al., Deep Learning with Differential Privacy,
CCS 2016, Algorithm 1), as an extra that needs Opacus.

Each step takes every sample with the same probability, independently of the others, shortens the gradient of
each to a norm, and adds Gaussian noise to their sum. Opacus says which layers cannot be trained so, and what
the steps cost.
"""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from shoal.core.data.seeds import derive
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.evaluation.evaluate import loss_of
from shoal.core.device_kit.evaluation.regression import refuse_targets
from shoal.core.device_kit.learner import Learner, Loss, authors
from shoal.core.device_kit.samples import Samples, seeded
from shoal.core.device_kit.training.fit import fitted
from shoal.core.device_kit.training.optimizers import optimizer_of
from shoal.core.device_kit.training.slots import SLOTS, Block, Rows, blocks, slots_of
from shoal.core.device_kit.training.train import Proximal, weights_of
from shoal.core.errors import DeviceFault, LearnerFault, Refused
from shoal.core.exchange.messages import MAX_NOISE, PrivateTraining, Protected, Trained, TrainingSettings
from shoal.core.privacy.cost import ORDERS, Cost
from shoal.core.privacy.dpsgd import TrainingTerms, noisy, taken
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.payment import training
from shoal.core.types import Tensors

LOWEST = 0.3
"""The least noise that is considered for an epsilon, in units of the clipping norm."""
ROUNDING = 1e-12
"""A generous bound of the accountant's rounding error, added to the divergence of each step."""
WITHIN = 1.0 - 1e-3
"""Of the norm, what gradients are shortened to: a margin for the rounding of norms and sums."""
GRID = 32
"""Clipped gradients are truncated to whole steps of a grid, 2^-GRID of the norm or finer: float64 sums whole
numbers exactly, in any order."""
AT_ONCE = 1 << 27
"""Bytes of the gradients of single samples that are there at a time."""

Gradients = dict[str, Tensor]


def terms(asked: PrivateTraining, settings: TrainingSettings, samples: int) -> TrainingTerms:
    """The terms of one such task on this number of samples; all of them are public.

    Raises DeviceFault without Opacus, Refused for an epsilon that no noise achieves.
    """
    settings = fitted(settings, samples)
    rate = min(1.0, settings.batch_size / samples)
    steps = settings.epochs * max(1, round(1.0 / rate))
    noise = asked.noise or _noise_for(asked, rate, steps)
    return TrainingTerms(asked.clip, noise, rate, steps, cost(noise, rate, steps))


@lru_cache
def cost(noise: float, rate: float, steps: int) -> Cost:
    """The cost of these steps for one sample (Mironov, Talwar and Zhang, Renyi Differential Privacy of the
    Sampled Gaussian Mechanism, 2019). Raises DeviceFault without Opacus.
    """
    try:
        from opacus.accountants.analysis.rdp import compute_rdp
    except ImportError as error:
        raise _missing(error) from None
    found = compute_rdp(q=rate, noise_multiplier=noise, steps=steps, orders=list(ORDERS))
    curve = np.maximum.accumulate(np.maximum(found, 0.0)) + ROUNDING * steps
    return Cost(curve=tuple(curve.tolist()))


@lru_cache
def _noise_for(asked: PrivateTraining, rate: float, steps: int) -> float:
    """The least noise, to a thousandth, with which all tasks of a run together have the requested epsilon."""
    low, high = LOWEST, MAX_NOISE
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        spent = cost(middle, rate, steps * asked.rounds).epsilon(asked.delta)
        low, high = (middle, high) if spent > asked.epsilon else (low, middle)
    if cost(high, rate, steps * asked.rounds).epsilon(asked.delta) > asked.epsilon:
        raise Refused(
            f"no noise achieves epsilon {asked.epsilon:g} (delta {asked.delta:g})",
            "ask for a larger epsilon, or fewer rounds and epochs",
        )
    return high


def paid(
    context: DeviceContext,
    agreed: TrainingTerms,
    samples: int,
    work: Callable[[None, Entropy], Tensors],
    of: str,
) -> Trained:
    """What `work` makes with noise, paid for before. of: what is trained, for people. Raises OverBudget."""
    found = context.pay(training(agreed, context.version(), of), lambda: None, work)
    done = Protected(agreed.clip, agreed.noise, agreed.rate, agreed.steps)
    return Trained(found, samples, 0.0, private=done, curve=agreed.cost.curve)


def check(learner: Learner, model: nn.Module) -> None:
    """Raise LearnerFault unless this network can be trained so, naming what to put in its place."""
    try:
        from opacus.validators import ModuleValidator
    except ImportError as error:
        raise _missing(error) from None
    if learner.train is not None:
        raise LearnerFault(
            f"{learner.name} has its own train(), for which no privacy guarantee can be given",
            "remove train(), or ask for training without dp_epsilon",
        )
    if not weights_of(model):
        raise LearnerFault(
            f"{learner.name} has no weight that may be trained", "leave some weights unfrozen (requires_grad)"
        )
    model.train()
    if faults := ModuleValidator.validate(model, strict=False):
        raise LearnerFault(
            f"the network cannot be trained with a guarantee: {str(faults[0]).split('. ')[0]}",
            "replace such layers in build(): GroupNorm instead of batch norm, or let "
            "opacus.validators.ModuleValidator.fix(model) do it",
        )


def train(
    learner: Learner,
    model: nn.Module,
    samples: Samples,
    settings: TrainingSettings,
    agreed: TrainingTerms,
    seed: int,
    entropy: Entropy,
) -> None:
    """Train `model` where it is. entropy: for the noise and for which samples a step takes; the operating
    system's on a device. seed: of dropout and the like, which may be known.

    Raises DeviceFault without labels, LearnerFault when the author's code fails or the weights become NaN.
    """
    gradients = of_each(model, loss_of(learner, samples))
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    settings = fitted(settings, len(samples))
    optimizer, pull = optimizer_of(model, settings), Proximal(model, settings.proximal)
    expected, before = agreed.rate * len(samples), _buffers(model)
    slots = slots_of(samples, width_of(parameters))
    model.train()
    with authors("training"):
        for step in range(agreed.steps):
            if settings.restart_momentum and step % (agreed.steps // settings.epochs) == 0:
                optimizer = optimizer_of(model, settings)
            rows = taken(len(samples), agreed.rate, entropy)
            sums = clipped_sums(gradients, parameters, samples, slots, rows, agreed.clip, derive(seed, step))
            for name, parameter in parameters.items():
                noised = noisy(sums[name].cpu().numpy(), agreed.noise * agreed.clip, entropy)
                parameter.grad = torch.from_numpy(noised / expected).to(parameter)
            pull.add_to_gradients()  # after the noise: it depends only on the weights
            optimizer.step()
        _unchanged(model, before)
    model.zero_grad(set_to_none=True)
    if not all(bool(torch.isfinite(value).all()) for value in parameters.values()):
        raise LearnerFault("weights became NaN or infinite", "lower learning_rate, or ask for less noise")


def attempt(learner: Learner, model: nn.Module, samples: Samples) -> None:
    """Compute a few gradients and discard them, so that a fault shows before anything is paid.

    Raises LearnerFault for one in the author's code; DeviceFault where a sample's gradient depends on the
    others in its block, since the guarantee could not hold then.
    """
    refuse_targets(samples, "DP-SGD")
    gradients, before = of_each(model.train(), loss_of(learner, samples)), _buffers(model)
    parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    slots = slots_of(samples, width_of(parameters))
    one, several = np.arange(1), np.flatnonzero((slots != slots[0]) | (np.arange(len(slots)) == 0))
    with authors("training"):
        found = [
            _of_block(gradients, block, samples.x.device, seed=0)
            for rows in (one, several)
            for block in islice(blocks(samples, slots, rows, width_of(parameters)), 1)
        ]
        _unchanged(model, before)
    place = int(slots[0])
    for name, value in found[0].items():
        if value[place].cpu().numpy().tobytes() != found[1][name][place].cpu().numpy().tobytes():
            raise DeviceFault(
                f"on this device, the gradient of one sample depends on others beside it ({name})",
                "no privacy guarantee is possible with this hardware or network; set compute.device to cpu",
            )


def _buffers(model: nn.Module) -> Gradients:
    return {name: value.clone() for name, value in model.named_buffers()}


def _unchanged(model: nn.Module, before: Gradients) -> None:
    """Raise LearnerFault if training wrote into a buffer: it would leave the device without noise."""
    for name, value in model.named_buffers():
        if name not in before or not torch.equal(value, before[name]):
            raise LearnerFault(
                f"the network writes into its buffer {name!r} while it trains, without a privacy guarantee",
                "keep what depends on the data in parameters",
            )


def _missing(error: ImportError) -> DeviceFault:
    return DeviceFault(
        f"training with a privacy guarantee needs Opacus, which is not installed here: {error}",
        "on this device: pip install opacus",
    )


def of_each(model: nn.Module, loss: Loss) -> Callable[[Tensor, Tensor], Gradients]:
    """Gradients of the loss of each of (B, ...) samples and (B,) labels: (B, ...) for each parameter."""

    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return loss(self.model, x[None], y[None])

    alone = Alone()

    def one(parameters: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = functional_call(alone, dict(parameters), (x, y))
        return found

    def of_all(x: Tensor, y: Tensor) -> Gradients:
        trained = {name: value.detach() for name, value in alone.named_parameters() if value.requires_grad}
        found = vmap(grad(one), in_dims=(None, 0, 0), randomness="different")(trained, x, y)
        return {name.removeprefix("model."): value for name, value in found.items()}

    return of_all


def width_of(like: Mapping[str, Tensor]) -> int:
    """How many slots a block has: as many as `AT_ONCE` has room for, at most SLOTS."""
    return min(SLOTS, max(1, AT_ONCE // (4 * sum(value.numel() for value in like.values()))))


def clipped_sums(
    gradients: Callable[[Tensor, Tensor], Gradients],
    like: Mapping[str, Tensor],
    samples: Samples,
    slots: Rows,
    rows: Rows,
    clip: float,
    seed: int,
) -> Gradients:
    """Sums over some samples of their gradients, each shortened to the norm `clip`: float64, as `like`.

    slots: of all samples, `width_of(like)` different ones at most. rows: numbers of those that are summed.
    seed: of dropout and the like in this step. A sample whose gradient is NaN or infinite counts as 0.
    """
    sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in like.items()}
    step = 2.0 ** (math.floor(math.log2(clip)) - GRID)
    for block in blocks(samples, slots, rows, width_of(like)):
        found = _of_block(gradients, block, samples.x.device, seed)
        flat = {name: value.reshape(len(value), -1).double() for name, value in found.items()}
        norms = torch.stack([value.norm(dim=1) for value in flat.values()]).norm(dim=0)
        factors = (WITHIN * clip / norms).clamp(max=1.0).nan_to_num(nan=0.0, posinf=1.0)
        factors = torch.where(torch.isfinite(norms) & block.filled, factors, 0.0)
        for name, value in flat.items():
            whole = value.nan_to_num_(0.0, 0.0, 0.0).mul_(factors[:, None] / step).trunc_()
            sums[name] += whole.sum(dim=0).view_as(sums[name])
    return {name: value.mul_(step) for name, value in sums.items()}


def _of_block(
    gradients: Callable[[Tensor, Tensor], Gradients], block: Block, device: torch.device, seed: int
) -> Gradients:
    """Every block starts from the same seed, so that dropout in a slot does not depend on earlier blocks."""
    assert block.y is not None
    with seeded(seed, device):
        return gradients(block.x, block.y)
