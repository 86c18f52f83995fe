"""When a run ends whose number of rounds is `auto`.

Each task of training measures the model that it was given, on samples that the device does not train on. So a
round brings the mean accuracy and loss of the models that the round before has made. A run *has settled* once
the mean of the last `WINDOW` rounds is surely not much better than that of the `WINDOW` rounds before them,
by either figure: then the learning rate falls for `FALL` more rounds, and the run ends. "Surely" takes into
account on how many samples the accuracy is measured: some hundreds show no small gain, so they hardly ever
stop a run.

The means are trimmed, and each device counts once: fewer than a quarter can neither hide that a run gets
better, nor make it seem so where it does not, by more than the others differ. The rounds are compared only
where nearly the same devices have answered: others' figures differ for other reasons. Where nothing is
measured, as with DP-SGD or sums under masks, a run takes as many rounds as it may.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shoal.core.algorithm import Report
from shoal.core.server_kit.standard import mean_accuracy, mean_loss, measured
from shoal.core.types import DeviceId

WINDOW = 3
GAIN, DROP = 0.005, 0.01
"""Of accuracy, from 0 to 1, and of loss, as a share of the first one: what is less is no gain."""
FALL = 4
"""Rounds of training from when a run has settled to its end."""
SAME = 0.9
"""The least share of the devices of two rounds that answered in both of them."""
SURE = 2.0
"""In standard errors of the difference between two accuracies, which is added to what was gained."""
CHANGED = 0.2
"""By this share of the variance of an accuracy, those of one model and of a later one scatter apart: most
samples that the one gets right, or wrong, so does the other."""


@dataclass(frozen=True)
class Ending:
    """How far a run is from its end. accuracies, losses: of the models after the last rounds of training, of
    twice `WINDOW` of them at most; first: the loss before all of them; devices: those of the last round;
    settled: after how many rounds of training the run had settled; 0: not yet.
    """

    accuracies: tuple[float, ...] = ()
    losses: tuple[float, ...] = ()
    first: float = 0.0
    devices: tuple[DeviceId, ...] = ()
    settled: int = 0

    def heard(self, reports: Sequence[Report], progress: int, learns: bool = True) -> "Ending":
        """After a round of training that began when `progress` were complete.

        learns: whether all models have begun to learn; before that, nothing has settled.
        """
        figures = measured(reports)
        if self.settled or not figures:
            return self
        both, any_ = {*self.devices} & {*figures}, {*self.devices} | {*figures}
        known = self if len(both) >= SAME * len(any_) else Ending()
        found = [figures[device] for device in sorted(figures)]
        accuracies = (*known.accuracies, mean_accuracy(reports))
        losses = (*known.losses, mean_loss(reports))
        first = known.first if known.losses else losses[0]
        now = Ending(accuracies[-2 * WINDOW :], losses[-2 * WINDOW :], first, tuple(sorted(figures)))
        # A device says itself how many samples it has, so none counts for more than the one in the middle.
        samples = len(found) * float(np.median([each.examples for each in found]))
        return replace(now, settled=progress + 1) if learns and now._is_flat(samples) else now

    def _is_flat(self, samples: float) -> bool:
        if len(self.accuracies) < 2 * WINDOW:
            return False
        before, after = np.mean(self.accuracies[:WINDOW]), np.mean(self.accuracies[WINDOW:])
        high, low = np.mean(self.losses[:WINDOW]), np.mean(self.losses[WINDOW:])
        error = SURE * math.sqrt(CHANGED * float(after * (1.0 - after)) / samples)
        return bool(after - before + error <= GAIN and high - low <= DROP * abs(self.first))

    def rounds(self, most: int) -> int:
        """How many rounds of training the run has in all. most: how many it may have."""
        return min(most, self.settled + FALL) if self.settled else most
