"""Training of several devices at once: each step of all of them is one step of the computer.

A GPU takes as long to launch a step of a small network as of fifty. So the weights of the devices stand in
the rows of one matrix, (N, W), and `torch.func` computes their losses side by side, each on the batches
and with the optimizer that its device would have by itself. What comes out differs by rounding only.

A device that has fewer samples, or fewer steps, has empty places in its batches, which weigh nothing, and at
the end steps in which its row stands still.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from shoal.core.device_kit.evaluation.evaluate import class_scores
from shoal.core.device_kit.evaluation.regression import predictions
from shoal.core.device_kit.samples import Batches, seeded
from shoal.core.device_kit.training.fit import fitted
from shoal.core.device_kit.training.products import Products
from shoal.core.device_kit.training.train import TrainingJob, check_weights
from shoal.core.errors import Diverged, diverged

CLOSE = 1e-2
"""How far gradients may be from those of one device by itself, relative to their norm. Convolutions on a GPU
round to 10 bits."""
WARM = 3
"""Steps before one is recorded on a GPU: by then libraries have what they set up at their first use."""
BETAS, EPSILON = (0.9, 0.999), 1e-8
"""Of Adam, as `optimizers.Adam` has them."""


def kind_of(job: TrainingJob) -> Hashable | None:
    """Jobs of one kind can be tried together. None: nothing but by itself."""
    learner, samples = job.learner, job.samples
    if learner.loss is not None or learner.train is not None or samples.y is None:
        return None
    state = [*job.model.named_parameters(), *job.model.named_buffers()]
    return (
        id(learner),
        job.settings,
        (samples.x.shape[1:], samples.x.dtype, samples.x.device, samples.targets is None),
        tuple((name, each.shape, each.dtype, each.requires_grad) for name, each in state),
    )


def train(jobs: Sequence[TrainingJob]) -> list[float | Diverged] | None:
    """Train the models of jobs of one kind where they are: what `train.alone` returns or raises, in their
    order.

    None, and nothing has changed, where that cannot be done: devices' gradients come out wrong where samples
    of a batch depend on each other, as in batch norm, and dropout, and code that looks at numbers, cannot be
    computed for several at once. Raises torch.cuda.OutOfMemoryError, and nothing has changed either.
    """
    try:
        with seeded(jobs[0].seed, jobs[0].samples.x.device):
            stack = _Stack(jobs)
            if not stack.is_right():
                return None
            losses = stack.run()
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception:  # whatever it is of the author's, training them one by one meets it, and says it
        return None
    stack.hand_back()
    return [_found(job, plan, row) for job, plan, row in zip(jobs, stack.plans, losses, strict=True)]


@dataclass(frozen=True, eq=False)
class _Plan:
    """The steps of one device. rows: (T, B) numbers of samples. counts: (T,) how many of them there are.
    batches: of an epoch."""

    rows: Tensor
    counts: Tensor
    batches: int

    @classmethod
    def of(cls, job: TrainingJob) -> "_Plan":
        settings = fitted(job.settings, len(job.samples))
        batches = Batches(job.samples, settings.batch_size, job.seed)
        spare = len(batches) * batches.size - len(job.samples)
        epochs = [F.pad(batches.order(), (0, spare)) for _ in range(settings.epochs)]
        counts = torch.full((settings.epochs, len(batches)), batches.size)
        counts[:, -1] -= spare
        return cls(torch.cat(epochs).view(-1, batches.size), counts.flatten(), len(batches))

    def within(self, steps: int, width: int) -> tuple[Tensor, Tensor]:
        """rows (steps, width) and counts (steps,), with nothing in what is added."""
        missing = steps - len(self.rows)
        rows = F.pad(self.rows, (0, width - self.rows.shape[1], 0, missing))
        return rows, F.pad(self.counts, (0, missing))


class _Loss(nn.Module):
    """The sum over a batch of each sample's loss times its share."""

    def __init__(self, model: nn.Module, classes: int, regression: bool) -> None:
        super().__init__()
        self.model, self.classes, self.regression = model, classes, regression

    def forward(self, x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        if self.regression:
            losses = (predictions(self.model, x) - y).square()
        else:
            losses = F.cross_entropy(class_scores(self.model, x, self.classes), y, reduction="none")
        return (losses * share).sum()


class _Stack:
    """N devices. plans: theirs. Every tensor that a step reads or writes stays where it is, so that a GPU can
    play a recorded step again."""

    def __init__(self, jobs: Sequence[TrainingJob]) -> None:
        first = jobs[0]
        self._settings, self._device = first.settings, first.samples.x.device
        classes = max(each.samples.classes for each in jobs)
        self._networks = [_Loss(each.model, classes, each.samples.targets is not None) for each in jobs]
        self._network = self._networks[0].train()
        self.plans = [_Plan.of(job) for job in jobs]
        steps, width = (max(each.rows.shape[axis] for each in self.plans) for axis in (0, 1))
        rows, counts = zip(*(plan.within(steps, width) for plan in self.plans), strict=True)
        begins = torch.tensor([0, *(len(each.samples) for each in jobs[:-1])]).cumsum(0)
        batches = torch.tensor([plan.batches for plan in self.plans])
        restarts = torch.arange(steps)[:, None] % batches == 0
        if not self._settings.restart_momentum:
            restarts[1:] = False
        self._rows = (torch.stack(rows, 1) + begins[:, None]).to(self._device)  # (T, N, B)
        self._counts = torch.stack(counts, 1).to(self._device)  # (T, N)
        self._even = bool((self._counts > 0).all())
        self._restarts = restarts.to(self._device)  # (T, N)
        self._now = torch.zeros(1, dtype=torch.int64, device=self._device)
        self._losses = torch.zeros(steps, len(jobs), device=self._device)
        self._x = torch.cat([each.samples.x for each in jobs])
        self._y = torch.cat([each.samples.goals for each in jobs])
        self._recorded: torch.cuda.CUDAGraph | None = None

    def is_right(self) -> bool:
        """Whether the first device's gradients, beside the others and beside empty places, are those that it
        has by itself. Finds out, too, which weights the loss depends on: others do not move."""
        rows, counts = self._rows[0], (self._counts[0] + 1) // 2
        x, y = self._x[rows[0, : counts[0]]], self._y[rows[0, : counts[0]]]
        state = {
            name: value.detach().clone()
            for name, value in [*self._network.named_parameters(), *self._network.named_buffers()]
        }
        weights = {name: state[name] for name, each in self._network.named_parameters() if each.requires_grad}
        before = {name: value.clone() for name, value in state.items()}
        for each in weights.values():
            each.requires_grad_()
        loss = functional_call(
            self._network, state, (x, y, torch.full(y.shape, 1 / len(y), device=self._device))
        )
        found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        alone = {name: slope for name, slope in zip(weights, found, strict=True) if slope is not None}
        self._arrange(list(alone))
        slopes, losses = self._gradients(rows, counts)
        own, other = torch.cat([each.flatten() for each in alone.values()]), slopes[0]
        near = (own - other).norm() <= CLOSE * own.norm() and (loss - losses[0]).abs() <= CLOSE * loss.abs()
        same = all(torch.equal(before[name], value) for name, value in state.items())
        kept = all(torch.equal(before[name], values[0]) for name, values in self._others.items())
        return bool(near) and same and kept

    def _arrange(self, names: Sequence[str]) -> None:
        """Put the weights that move into the rows of a matrix. The rest of the state stands beside it."""
        parts = [dict([*each.named_parameters(), *each.named_buffers()]) for each in self._networks]
        self._names = names
        self._shapes = [parts[0][name].shape for name in names]
        self._sizes = [shape.numel() for shape in self._shapes]
        self._weights = torch.stack(
            [torch.cat([part[name].detach().flatten() for name in names]) for part in parts]
        )
        self._others = {
            name: torch.stack([part[name].detach() for part in parts])
            for name in parts[0]
            if name not in names
        }
        self._start = self._weights.clone()
        shapes = [self._weights.shape] * 2 + [(len(parts), 1)]  # of Adam: two moments, and steps taken
        self._moments = [
            self._weights.new_zeros(shape)
            for shape in (shapes[:1] if self._settings.optimizer == "sgd" else shapes)
        ]

    def _pieces(self, row: Tensor) -> dict[str, Tensor]:
        parts = zip(self._names, torch.split(row, self._sizes), self._shapes, strict=True)
        return {name: part.view(shape) for name, part, shape in parts}

    def _loss(self, row: Tensor, others: dict[str, Tensor], x: Tensor, y: Tensor, share: Tensor) -> Tensor:
        with Products():
            found: Tensor = functional_call(self._network, {**self._pieces(row), **others}, (x, y, share))
        return found

    def _gradients(self, rows: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """(N, W) and (N,): gradients and losses of batches. rows: (N, B). counts: (N,)."""
        x, y = (
            each.index_select(0, rows.flatten()).view(*rows.shape, *each.shape[1:])
            for each in (self._x, self._y)
        )
        filled = torch.arange(rows.shape[1], device=self._device) < counts[:, None]
        with torch.enable_grad():
            weights = self._weights.detach().requires_grad_()
            # Not kept: it refers to the stack, which then, with its recorded step, would stay in a GPU's
            # memory until Python looks for cycles.
            each = vmap(self._loss)
            losses = each(weights, self._others, x, y, filled / counts[:, None].clamp(min=1))
            (slopes,) = torch.autograd.grad(losses.sum(), weights)  # of its own loss only, in each row
        return slopes, losses.detach()

    @torch.no_grad()
    def _step(self) -> None:
        counts = self._counts.index_select(0, self._now)[0]
        slopes, losses = self._gradients(self._rows.index_select(0, self._now)[0], counts)
        self._losses.index_copy_(0, self._now, losses[None])
        self._move(slopes, self._restarts.index_select(0, self._now).T, counts[:, None] > 0)
        self._now.add_(1)

    def _move(self, slopes: Tensor, restarts: Tensor, moving: Tensor) -> None:
        """Take the optimizer's step in the rows that are `moving`. restarts: (N, 1), where it forgets all."""
        asked, weights = self._settings, self._weights
        if asked.proximal:
            slopes = slopes + asked.proximal * (weights - self._start)
        if asked.clip_norm:
            norms = slopes.norm(dim=1, keepdim=True)
            slopes = slopes * (asked.clip_norm / (norms + 1e-6)).clamp(max=1.0)
        if asked.weight_decay and asked.optimizer != "adamw":
            slopes = slopes + asked.weight_decay * weights
        first, *more = (each.masked_fill(restarts, 0.0) for each in self._moments)
        if not more:
            moments = [asked.momentum * first + slopes]
            moved = weights - asked.learning_rate * moments[0]
        else:
            second, taken = more[0], more[1] + 1.0
            first = BETAS[0] * first + (1.0 - BETAS[0]) * slopes
            second = BETAS[1] * second + (1.0 - BETAS[1]) * slopes.square()
            mean, square = first / (1.0 - BETAS[0] ** taken), second / (1.0 - BETAS[1] ** taken)
            shrunk = 1.0 - asked.learning_rate * asked.weight_decay * (asked.optimizer == "adamw")
            moved = shrunk * weights - asked.learning_rate * mean / (square.sqrt() + EPSILON)
            moments = [first, second, taken]
        for old, new in zip((weights, *self._moments), (moved, *moments), strict=True):
            old.copy_(new if self._even else torch.where(moving, new, old))

    def run(self) -> list[np.ndarray]:
        """Take all steps. The losses of each device's own."""
        if self._device.type == "cuda":
            self._play()
        else:
            for _ in range(len(self._rows)):
                self._step()
        losses = self._losses.T.cpu().numpy().astype(np.float64)
        return [row[: len(plan.counts)] for row, plan in zip(losses, self.plans, strict=True)]

    def _play(self) -> None:
        """Record a step and replay it: then a step is one launch, whatever it computes."""
        side, main = _side(self._device), torch.cuda.current_stream(self._device)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            for _ in range(min(WARM, len(self._rows))):
                self._step()
            if len(self._rows) > WARM:
                self._recorded = recorded = torch.cuda.CUDAGraph()
                with torch.cuda.graph(recorded, stream=side, capture_error_mode="thread_local"):
                    self._step()
                for _ in range(len(self._rows) - WARM):
                    recorded.replay()
        main.wait_stream(side)

    @torch.no_grad()
    def hand_back(self) -> None:
        """Write the weights into the devices' networks."""
        for network, row in zip(self._networks, self._weights, strict=True):
            own = dict(network.named_parameters())
            for name, value in self._pieces(row).items():
                own[name].copy_(value)


@cache
def _side(device: torch.device) -> torch.cuda.Stream:
    """The stream on which steps are recorded: not the usual one, and always the same, which keeps memory."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _found(job: TrainingJob, plan: _Plan, losses: np.ndarray) -> float | Diverged:
    """The mean loss of the last epoch, or how training has diverged. losses: (T,) of the device's steps."""
    rate = job.settings.learning_rate
    sums = (losses * plan.counts.numpy()).reshape(-1, plan.batches).sum(axis=1)
    means = sums / len(job.samples)
    for epoch, mean in enumerate(means, start=1):
        if not np.isfinite(mean):
            return diverged(f"the loss became {mean} in epoch {epoch} of {len(means)}", rate)
    try:
        check_weights(job.model, rate)
    except Diverged as error:
        return error
    return float(means[-1])
