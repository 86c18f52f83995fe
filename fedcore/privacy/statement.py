"""What was released, in the words of every report: the true (epsilon, delta), or that there is none."""

import math
from dataclasses import dataclass
from typing import Any

from fedcore.privacy.accounting import epsilon_of, group

OPEN = {
    "off": "a descriptor as it is (privacy=off)",
    "paper": "a descriptor with the papers' noise (privacy=paper, which is not private)",
    "prototypes": "mean embeddings of classes (prototypes), with how many samples each has",
    "bounds": "bounds of latents, which are values of real records",
}
"""What can leave without a guarantee."""
WEIGHTS = "weights: no privacy guarantee, as they leave without DP-SGD"


@dataclass(frozen=True)
class Statement:
    """All releases of somebody. rho: what they cost, for one sample. delta, group_size: at which it is told.

    unprotected: what left without a guarantee, as in `OPEN`.
    """

    rho: float = 0.0
    delta: float = 1e-6
    group_size: int = 1
    unprotected: tuple[str, ...] = ()

    @property
    def epsilon(self) -> float:
        """The true epsilon of everything but the weights; infinite where something left unprotected."""
        return math.inf if self.unprotected else self.protected

    @property
    def protected(self) -> float:
        """The epsilon of what has a guarantee, which says nothing of the rest."""
        return epsilon_of(group(self.rho, self.group_size), self.delta)

    def facts(self) -> dict[str, Any]:
        """For programs. epsilon: None where there is none; of_releases: of what has one."""
        return {
            "epsilon": None if self.unprotected else self.epsilon,
            "delta": self.delta,
            "group_size": self.group_size,
            "of_releases": self.protected,
            "unprotected": list(self.unprotected),
            "summary": str(self),
        }

    def __str__(self) -> str:
        if not self.rho and not self.unprotected:
            return "nothing was released"
        samples = f" for {self.group_size} samples together" if self.group_size > 1 else ""
        kept = f"epsilon {self.protected:.4g} at delta {self.delta:g}{samples}"
        if not self.unprotected:
            return kept
        some = f"; the rest: {kept}" if self.rho else ""
        return f"no guarantee: {', '.join(self.unprotected)}{some}"
