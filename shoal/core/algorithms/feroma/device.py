"""The device half of FEROMA: the standard one, and profiles of random parts of the data."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from shoal.core.algorithms.feroma.messages import Profile
from shoal.core.device_kit import standard
from shoal.core.device_kit.describe import described, moments_of, project
from shoal.core.device_kit.latents import latents
from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Described, Message
from shoal.core.privacy.release import ExactMoments
from shoal.core.seeds import generator
from shoal.core.types import Tensors

if TYPE_CHECKING:
    from torch import nn

    from shoal.core.data.version import Numbers
    from shoal.core.device_kit.context import DeviceContext
    from shoal.core.device_kit.learner import Learner
    from shoal.core.device_kit.samples import Samples

SHARE = 0.5
"""gamma: how likely a sample is to be in a mask."""
MOST = 64


def perform(message: Message, context: "DeviceContext") -> Message:
    return profile(message, context) if isinstance(message, Profile) else standard.perform(message, context)


def profile(message: Profile, context: "DeviceContext") -> Described:
    """Raises BadPayload for what cannot be asked, and what `shoal.core.device_kit.describe` raises."""
    if not 0 <= message.masks <= MOST or message.part not in ("train", "held_out"):
        raise BadPayload(f"a profile of {message.masks} masks of the {message.part} part", f"at most {MOST}")
    if message.masks and message.privacy.calibrated:
        raise BadPayload("a guarantee is for all samples at once", "ask for no masks")
    part = message.part if len(getattr(context.views, message.part)) else "train"
    chance = generator(context.seed, "masks")

    def moments(
        learner: "Learner",
        model: "nn.Module",
        parts: "Sequence[Samples]",
        projector: Tensors,
        classes: int,
        distinct: "Numbers | None",
    ) -> ExactMoments:
        batches = (batch for each in parts for batch in latents(learner, model, each))
        projected = project(batches, projector)
        labels = torch.cat([each.labels for each in parts]).cpu().numpy() if classes else None
        found = []
        for mask in masks(len(projected), message.masks, chance):
            own, same = (None if numbers is None else numbers[mask] for numbers in (labels, distinct))
            found.append(moments_of(projected[mask], own, classes, same))
        return averaged(found, len(projected))

    descriptor = described(
        context,
        message.encoder,
        message.projector,
        [part],
        message.classes,
        message.privacy,
        moments,
    )
    return Described(descriptor, len(context.samples(part)))


def masks(samples: int, count: int, chance: np.random.Generator) -> list[npt.NDArray[np.bool_]]:
    """`count` masks of so many samples, none of them empty; for a count of 0, one of all."""
    found = [chance.random(samples) < SHARE for _ in range(count)] or [np.ones(samples, np.bool_)]
    for mask in found:
        mask[int(chance.integers(samples))] |= not mask.any()
    return found


def averaged(found: Sequence[ExactMoments], samples: int) -> ExactMoments:
    """The mean of moments over masks, of each class over the masks that have two samples of it.

    Counts are of all samples, scaled to how many would estimate a mean as well as the masks together do.
    """
    counts = np.stack([each.counts for each in found])  # (masks, rows)
    told = counts >= 2.0
    told[:, 0] = True
    among = np.maximum(told.sum(axis=0), 1)[:, None]
    means, deviations = (
        (np.stack(arrays) * told[:, :, None]).sum(axis=0) / among
        for arrays in ([each.means for each in found], [each.deviations for each in found])
    )
    total = counts.sum(axis=0)
    worth = 1.0 + (1.0 - SHARE) / (SHARE * len(found)) if counts[:, 0].min() < samples else 1.0
    low, high = min(each.low for each in found), max(each.high for each in found)
    return ExactMoments(means, deviations, total * samples / (total[0] * worth), low, high)
