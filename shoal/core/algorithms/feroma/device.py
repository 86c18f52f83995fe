"""The device half of FEROMA: the standard one, and profiles of random parts of the data."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from shoal.core.algorithms.feroma.messages import Profile
from shoal.core.data.seeds import generator
from shoal.core.device_kit import standard
from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Described, Message
from shoal.core.exchange.parts import FloatArray
from shoal.core.inference.describing import described, moments_of
from shoal.core.privacy.release import ExactMoments

if TYPE_CHECKING:
    from shoal.core.data.version import Numbers
    from shoal.core.device_kit.context import DeviceContext
    from shoal.core.types import Array

MASK_SHARE = 0.5
"""gamma: the probability that a sample is in a mask."""
MAX_MASKS = 64


def perform(message: Message, context: "DeviceContext") -> Message:
    return profile(message, context) if isinstance(message, Profile) else standard.perform(message, context)


def profile(message: Profile, context: "DeviceContext") -> Described:
    """Raises BadPayload for a request that is not legal, and the errors of
    `shoal.core.inference.describing`."""
    if not 0 <= message.masks <= MAX_MASKS or message.part not in ("train", "held_out"):
        raise BadPayload(
            f"there is no profile of {message.masks} masks of the {message.part} part",
            f"ask for 0 to {MAX_MASKS} masks",
        )
    if message.masks and message.privacy.calibrated:
        raise BadPayload("a privacy guarantee covers all samples at once", "ask for no masks")
    part = message.part if len(getattr(context.views, message.part)) else "train"
    chance = generator(context.seed, "masks")

    def moments(
        points: FloatArray, labels: "Array | None", classes: int, distinct: "Numbers | None"
    ) -> ExactMoments:
        found = []
        for mask in masks(len(points), message.masks, chance):
            own, same = (None if numbers is None else numbers[mask] for numbers in (labels, distinct))
            found.append(moments_of(points[mask], own, classes, same))
        return averaged(found, len(points))

    descriptor = described(
        context, message.encoder, message.projector, [part], message.classes, message.privacy, moments
    )
    return Described(descriptor, len(context.part(part)))


def masks(samples: int, count: int, chance: np.random.Generator) -> list[npt.NDArray[np.bool_]]:
    """`count` masks of this many samples, none of them empty; for a count of 0, one mask of all samples."""
    found = [chance.random(samples) < MASK_SHARE for _ in range(count)] or [np.ones(samples, np.bool_)]
    for mask in found:
        mask[int(chance.integers(samples))] |= not mask.any()
    return found


def averaged(found: Sequence[ExactMoments], samples: int) -> ExactMoments:
    """The mean of the moments over masks; for a class, over the masks that have at least two samples of it.

    Counts are for all samples, scaled to the number that would estimate a mean as accurately as the masks
    together do.
    """
    counts = np.stack([each.counts for each in found])  # (masks, rows)
    known = counts >= 2.0
    known[:, 0] = True
    among = np.maximum(known.sum(axis=0), 1)[:, None]
    means, deviations = (
        (np.stack(arrays) * known[:, :, None]).sum(axis=0) / among
        for arrays in ([each.means for each in found], [each.deviations for each in found])
    )
    total = counts.sum(axis=0)
    worth = 1.0 + (1.0 - MASK_SHARE) / (MASK_SHARE * len(found)) if counts[:, 0].min() < samples else 1.0
    low, high = min(each.low for each in found), max(each.high for each in found)
    return ExactMoments(means, deviations, total * samples / (total[0] * worth), low, high)
