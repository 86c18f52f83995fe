"""What became of the rounds of each run, in short. After the first look, only later rounds are read.

A round that is damaged for good is left out: what is said of the others stays true, and a run that finishes
must not fail for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedserver.store.journal.timeline import Timeline
from shoal.core.server_kit.history.records import TRAIN
from shoal.core.types import DeviceId, RunId


@dataclass(frozen=True)
class Outcomes:
    """last: the number of the last round that is over. abandoned: by round, why it has no result. accuracies:
    by how many rounds of training were complete, the mean accuracy of the models then, where devices measured
    it. losses: the mean loss of each round of training, oldest first. missing: the devices that are missing
    in the last round, and why."""

    last: int = 0
    abandoned: Mapping[int, str] = field(default_factory=dict)
    accuracies: Mapping[int, float] = field(default_factory=dict)
    losses: tuple[float, ...] = ()
    missing: Mapping[DeviceId, str] = field(default_factory=dict)


KEPT = 16
"""Of how many runs the outcomes stay in memory. Those of another run are read again."""


class OutcomeCache:
    """The outcomes of the runs that were asked for last, in memory. For the thread that owns the database."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._known: dict[RunId, Outcomes] = {}

    def of(self, run: RunId) -> Outcomes:
        """The outcomes of a run's rounds."""
        found = self._known.get(run, Outcomes())
        while page := self._timeline.readable(run, found.last, devices=False):
            abandoned = {each.round: each.abandoned for each in page if each.abandoned}
            measured = {each.began: each.accuracy for each in page if each.accuracy is not None}
            losses = [each.loss for each in page if each.measured_on == TRAIN and each.loss is not None]
            last = self._timeline.readable(run, page[-1].round - 1, most=1)
            found = Outcomes(
                page[-1].round,
                {**found.abandoned, **abandoned},
                {**found.accuracies, **measured},
                (*found.losses, *losses),
                last[0].missing if last else {},
            )
        self._known.pop(run, None)
        self._known[run] = found
        for oldest in list(self._known)[:-KEPT]:
            del self._known[oldest]
        return found

    def forget(self, run: RunId) -> None:
        """The rounds of a run may have been deleted."""
        self._known.pop(run, None)
