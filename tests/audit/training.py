"""DP-SGD under weights that a hostile server chose: what one more sample in a step tells.

The scores are the amplified rounding error of the hidden layer, as in `test_hostile_weights`. Where the last
bits of one sample depended on how many others there are, one more sample changed the gradients of all others,
and this audit proved more than was claimed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from shoal.core.device_kit.evaluation.evaluate import loss_of
from shoal.core.device_kit.learner import builtin, tensors_of
from shoal.core.device_kit.samples import Samples
from shoal.core.device_kit.training.private import clipped_sums, of_each, width_of
from shoal.core.device_kit.training.slots import slots_of
from shoal.core.exchange.messages import Message, PrivateTraining, Train, Trained, TrainingSettings
from shoal.core.exchange.parts import FloatArray
from shoal.core.types import Array, Tensors
from tests.core.device_kit.test_hostile_weights import hostile

INPUTS, SAMPLES, RATE = 64, 16, 1.0


@dataclass(frozen=True, eq=False)
class TrainingWorld:
    """One step over all samples: 15 of them, or 16. claimed: the epsilon that is asked for."""

    claimed: float = 3.0
    delta: float = 1e-6
    classes: int = 2

    held_out: ClassVar[float] = 0.0
    options: ClassVar[Mapping[str, object]] = {"inputs": INPUTS, "hidden": [2], "classes": 2}

    @cached_property
    def model(self) -> Tensors:
        return tensors_of(hostile(builtin("mlp", self.options)))

    @property
    def question(self) -> Train:
        settings = TrainingSettings(epochs=1, batch_size=SAMPLES, learning_rate=RATE, momentum=0.0)
        return Train(self.model, settings, private=PrivateTraining(epsilon=self.claimed, delta=self.delta))

    @cached_property
    def x(self) -> Array:
        """(SAMPLES, INPUTS) float32. The last one makes the difference: its gradient is long."""
        some = np.random.default_rng(3).uniform(size=(4 * SAMPLES, INPUTS)).astype(np.float32)
        longest = max(range(SAMPLES, len(some)), key=lambda one: np.linalg.norm(self._clipped(some[one])))
        return np.concatenate([some[: SAMPLES - 1], some[longest : longest + 1]])

    def _clipped(self, one: Array) -> FloatArray:
        """The clipped gradient of one sample, for the weights in which nearly all of it lies."""
        learner = builtin("mlp", self.options)
        samples = Samples(torch.from_numpy(one[None]), torch.zeros(1, dtype=torch.int64), 2)
        model = hostile(learner)
        like, gradients = dict(model.named_parameters()), of_each(model, loss_of(learner, samples))
        slots = slots_of(samples, width_of(like))
        return clipped_sums(gradients, like, samples, slots, np.arange(1), 1.0, seed=0)[self._name].numpy()

    def save(self, path: Path, present: bool) -> None:
        count = SAMPLES if present else SAMPLES - 1
        np.savez(path, x=self.x[:count], y=np.zeros(count, np.int64))

    def released(self, reply: Message) -> Trained:
        assert isinstance(reply, Trained)
        return reply

    def statistic(self, released: Trained) -> float:
        """The noisy sum of the clipped gradients, along the gradient of the sample in question."""
        moved = (self.model[self._name] - released.model[self._name]).astype(np.float64)
        return float((moved * self._along).sum() * released.examples / RATE)

    @cached_property
    def _name(self) -> str:
        """The hidden layer's weights."""
        return next(name for name, array in self.model.items() if array.shape == (2, INPUTS))

    @cached_property
    def _along(self) -> FloatArray:
        found = self._clipped(self.x[-1])
        return found / np.linalg.norm(found)
