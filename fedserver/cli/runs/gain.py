"""What grouping gained: the devices of a run with several clusters, beside the same with one model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedserver.coordinator.status_types import RunStatus

CHANCE = 2.0
"""A mean difference of fewer standard errors than this can be chance."""
MIN_DEVICES = 3
"""With fewer devices, nothing is said about chance."""


@dataclass(frozen=True)
class Gain:
    """run: with several clusters. single: with one model. devices: measured in both.

    mean: by how much accuracy (0 to 1) is higher in `run`, each device counting once. error: the standard
    error of that mean; None for fewer than MIN_DEVICES devices.
    """

    run: str
    single: str
    devices: int
    mean: float
    error: float | None

    @property
    def is_clear(self) -> bool:
        """Whether it is more than chance explains."""
        return self.error is not None and abs(self.mean) > CHANCE * self.error

    def text(self) -> str:
        """One sentence.

        Example:
            >>> Gain("flux", "fedavg", 8, 0.174, 0.02).text()
            'grouping gained 17.4 points over one model (run flux beside run fedavg, 8 devices)'
        """
        beside = f"(run {self.run} beside run {self.single}, {self.devices} devices)"
        points = f"{100 * abs(self.mean):.1f} points"
        if not self.is_clear:
            change = f"grouping made a difference of {points}, which can be chance"
            return f"one model may be as good here: {change} {beside}"
        if self.mean < 0:
            return f"one model is better here: grouping lost {points} {beside}"
        return f"grouping gained {points} over one model {beside}"


def gains(found: Sequence[RunStatus]) -> list[Gain]:
    """The first of these runs with one model, beside each of those with several; none if devices differ."""
    single = next((each for each in found if each.summary.cluster_count == 1), None)
    if single is None:
        return []
    several = [each for each in found if each.summary.cluster_count > 1]
    return [gain for each in several if (gain := _gain(each, single)) is not None]


def _gain(run: RunStatus, single: RunStatus) -> Gain | None:
    one = {each.device: each.accuracy for each in single.devices if each.accuracy is not None}
    differences = [
        each.accuracy - one[each.device]
        for each in run.devices
        if each.accuracy is not None and each.device in one
    ]
    if not differences:
        return None
    count, mean = len(differences), math.fsum(differences) / len(differences)
    error = None
    if count >= MIN_DEVICES:
        error = math.sqrt(math.fsum((each - mean) ** 2 for each in differences) / (count - 1) / count)
    return Gain(run.summary.run, single.summary.run, count, mean, error)
