"""Two data sets that differ in one sample, the server that asks about them, and the best test between them.

The auditor's encoder hands the data on as latents, twice as large. So a sample of 3e38 overflows: its latents
are infinite, which counts as an empty place. That is the sample's absence.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from shoal.core.device_kit.learner import builtin, initial_weights
from shoal.core.exchange.messages import Describe, Described, Message
from shoal.core.exchange.parts import Descriptor, FloatArray, NoisySums, PrivacySettings
from shoal.core.inference.describing import moments_of, project
from shoal.core.privacy.cost import epsilon_of, rho_for
from shoal.core.privacy.sums import GRID, REPLACED, sums_of
from shoal.core.server_kit.frozen_encoder import LENGTH, public_projector
from shoal.core.types import Array, Tensors

SAMPLES, LATENTS, DIMS = 160, 16, 2
OPTIONS = {"inputs": LATENTS, "hidden": [LATENTS], "classes": 2}
OVERFLOWING = 3e38


@dataclass(frozen=True, eq=False)
class World:
    """settings: what is asked for. classes: U, or 0 for what a newcomer releases.

    replaced: whether the sample, where it is absent, is another one: the one that moves the sums the most.
    """

    settings: PrivacySettings
    classes: int = 0
    replaced: bool = False

    held_out: ClassVar[float] = 0.2
    options: ClassVar[Mapping[str, object]] = OPTIONS

    @property
    def claimed(self) -> float:
        """The epsilon that is stated for these two data sets."""
        asked = self.settings
        if not self.replaced:
            return asked.epsilon
        return epsilon_of(REPLACED**2 * rho_for(asked.epsilon, asked.delta), asked.delta)

    def released(self, reply: Message) -> Descriptor:
        """What the answer to the question releases."""
        assert isinstance(reply, Described)
        return reply.descriptor

    @property
    def question(self) -> Describe:
        return Describe(self.encoder, self.projector, self.classes, self.settings)

    @cached_property
    def encoder(self) -> Tensors:
        weights = initial_weights(builtin("mlp", OPTIONS), 0)
        square = (LATENTS, LATENTS)
        return {
            name: 2 * np.eye(LATENTS, dtype=np.float32) if array.shape == square else np.zeros_like(array)
            for name, array in weights.items()
        }

    @cached_property
    def projector(self) -> Tensors:
        if self.settings.calibrated:
            # The auditor does not look at lengths: a sample that is one direction moves the sums the most.
            public = public_projector(LATENTS, DIMS + LENGTH)
            return {**public, "components": public["components"][:DIMS]}
        return {"mean": np.zeros(LATENTS), "components": np.eye(DIMS, LATENTS)}

    def x(self, present: bool) -> Array:
        """(SAMPLES, LATENTS) float32. The last is the sample that makes the difference."""
        if self.settings.calibrated:
            samples = np.random.default_rng(0).uniform(size=(SAMPLES, LATENTS)).astype(np.float32)
            samples[-1] = self._worst() if present else 1.0 - self._worst() if self.replaced else OVERFLOWING
            return samples
        # The papers take the range from the data. Some other sample spans it in both data sets, so that what
        # is found is not only the fault of the range.
        samples = np.zeros((SAMPLES, LATENTS), np.float32)
        samples[-2] = 1.0
        samples[-1] = 1.0 if present else 0.0
        return samples

    @property
    def y(self) -> Array:
        return np.arange(SAMPLES) % 2

    def _worst(self) -> FloatArray:
        """A sample whose projected latents have the length of the radius and lie on an axis: its part of the
        sums is as long as any can be."""
        first, *rest = self.projector["components"][:, :LATENTS]
        others = np.vstack([np.ones(LATENTS), *rest])
        along = first - others.T @ np.linalg.lstsq(others.T, first, rcond=None)[0]
        return (along - along.min()) / np.ptp(along)

    def save(self, path: Path, present: bool) -> None:
        labels = {"y": self.y} if self.classes else {}
        np.savez(path, x=self.x(present), **labels)

    def statistic(self, released: Descriptor) -> float:
        """Larger where the sample is more likely to be there: the likelihood ratio, or what grows with it."""
        absent, present = self._exact
        sent = released.statistics
        if isinstance(sent, NoisySums):
            along = present - absent
            return float(((sent.values - absent) * along).sum() / np.linalg.norm(along) / GRID)
        found = np.stack([sent.means, sent.deviations])
        return float((np.abs(found - absent) - np.abs(found - present)).sum())

    @cached_property
    def sensitivity(self) -> float:
        """By how much the sample moves the exact sums, 1 at most, or REPLACED; only for calibrated modes."""
        absent, present = self._exact
        return float(np.linalg.norm(present - absent) / GRID)

    @cached_property
    def _exact(self) -> tuple[FloatArray, FloatArray]:
        """What is released, before noise: without the sample and with it."""
        absent, present = (self._of(self.x(there)) for there in (False, True))
        return absent, present

    def _of(self, x: Array) -> FloatArray:
        labels = self.y if self.classes else None
        with np.errstate(over="ignore"):
            latents = project([2 * x], self.projector)
        if self.settings.calibrated:
            radius = float(self.projector["radius"])
            return sums_of([(latents, labels)], radius, DIMS, self.classes).values.astype(np.float64)
        moments = moments_of(latents, labels, self.classes)
        return np.stack([moments.means, moments.deviations])
