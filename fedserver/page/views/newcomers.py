"""Newcomers: what devices were answered that asked for a model of a run."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fedserver.page.views.run import number
from fedserver.page.views.texts import name, words
from fedserver.store.journal.placements import PlacementRecord

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
    return {
        "device": name(found.device),
        "outcome": found.outcome,
        "showed": found.evidence,
        "cluster": name(found.cluster),
        "runner_up": name(found.runner_up),
        "confidence": number(found.confidence),
        "models": [name(key) for key in found.models[:MAX_MODELS]],
        "count": len(found.models),
        "at": round(found.at, 1),
        "times": found.times,
        "reason": words(found.reason),
    }
