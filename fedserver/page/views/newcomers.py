"""Newcomers: what devices were answered that asked for a model of a run."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from fedserver.page.views.records import shown
from fedserver.store.journal.newcomers import PlacementRecord

MAX_ANSWERS, MAX_MODELS = 500, 16
"""How many answers are shown, the newest, and of how many models each names the clusters."""


@dataclass
class Newcomers:
    """The answers of one run, taken one after another. last: the number of the last record that was taken."""

    last: int = 0
    _found: dict[tuple[str, float], PlacementRecord] = field(default_factory=dict)

    def take(self, records: Iterable[PlacementRecord]) -> bool:
        """Take the next records. Returns whether there were any."""
        before = self.last
        for each in records:
            # A device that is answered so again has the same record under a new number.
            self._found.pop((each.device, each.since), None)
            self._found[each.device, each.since] = each
            self.last = each.number
            while len(self._found) > MAX_ANSWERS:
                del self._found[next(iter(self._found))]
        return self.last != before

    def document(self) -> dict[str, Any]:
        """All of them, the newest first."""
        return {"placements": [_row(each) for each in reversed(self._found.values())]}


def _row(found: PlacementRecord) -> dict[str, Any]:
    few = replace(found, models=found.models[:MAX_MODELS])
    return {**shown(few), "count": len(found.models)}
