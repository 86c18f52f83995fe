"""The parts of DP-SGD that need no network: its terms, and which samples a step takes.

Chance is entropy as the operating system gives it, with no generator in between, as in
`shoal.core.privacy.gaussian`: what a step takes must be known to nobody.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.core.privacy.chance import Entropy
from shoal.core.privacy.cost import Cost


@dataclass(frozen=True)
class TrainingTerms:
    """One task's training. clip: L2 norm to which a sample's gradient is shortened.

    noise: its standard deviation, in units of clip. rate: probability with which a sample is in a step.
    steps: of the task. cost: of all of them.
    """

    clip: float
    noise: float
    rate: float
    steps: int
    cost: Cost


def taken(samples: int, rate: float, entropy: Entropy) -> npt.NDArray[np.intp]:
    """The samples of one step: each with the same probability, at most `rate`, whatever the others do."""
    words = np.frombuffer(entropy(8 * samples), np.uint64)
    most = math.floor(rate * 2.0**64)
    return np.flatnonzero(words < most) if most < 1 << 64 else np.arange(samples)
