"""What became of the rounds of each run, in short. After the first look, only later rounds are read."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedserver.store.database import Database
from fedserver.store.journal.timeline import Timeline
from shoal.core.types import DeviceId, RunId


@dataclass(frozen=True)
class Outcomes:
    """last: the number of the last round that is over. abandoned: by round, why it has no result. accuracies:
    by how many rounds of training were complete, the mean accuracy of the models then, where devices measured
    it. missing: the devices that are missing in the last round, and why."""

    last: int = 0
    abandoned: Mapping[int, str] = field(default_factory=dict)
    accuracies: Mapping[int, float] = field(default_factory=dict)
    missing: Mapping[DeviceId, str] = field(default_factory=dict)


class OutcomeCache:
    """The outcomes of all runs that were asked for, in memory. For the thread that owns the database."""

    def __init__(self, database: Database, timeline: Timeline) -> None:
        self._db, self._timeline = database, timeline
        self._known: dict[RunId, Outcomes] = {}

    def of(self, run: RunId) -> Outcomes:
        """The outcomes of a run's rounds."""
        found = self._known.get(run, Outcomes())
        rows = self._db.rows("rounds", "WHERE run = ? AND round > ? ORDER BY round", (run, found.last))
        if not rows:
            return found
        abandoned = {each["round"]: each["abandoned"] for each in rows if each["abandoned"]}
        measured, after = dict[int, float](), found.last
        while page := self._timeline.read(run, after, devices=False):
            after = page[-1].round
            measured |= {each.began: each.accuracy for each in page if each.accuracy is not None}
        self._known[run] = Outcomes(
            rows[-1]["round"],
            {**found.abandoned, **abandoned},
            {**found.accuracies, **measured},
            json.loads(rows[-1]["missing"]),
        )
        return self._known[run]

    def forget(self, run: RunId) -> None:
        """The rounds of a run may have been deleted."""
        self._known.pop(run, None)
