"""What happened in a run, one row for each round that is over, as the browser keeps it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedserver.page.views.records import number
from fedserver.page.views.texts import name, words
from shoal.core.server_kit.history.records import Digest, RoundHistory
from shoal.core.types import DeviceId, ModelKey

EVENTS, CLUSTERS = 20, 64
"""How many events and clusters of one round are shown."""


@dataclass
class Past:
    """The rounds of one run, taken one after another. created: when the run was started.

    last: the number of the last round that was taken, rows: how many were. map_round: the last round that has
    a map of devices, 0 if none has. places: the map that was taken last.
    """

    created: float | None = None
    last: int = 0
    rows: int = 0
    map_round: int = 0
    places: dict[str, Any] = field(default_factory=dict)
    _clusters: dict[DeviceId, ModelKey] = field(default_factory=dict)

    def take(self, rounds: Iterable[RoundHistory]) -> list[dict[str, Any]]:
        """The rows of the next rounds."""
        return [self._row(each) for each in rounds]

    def _row(self, found: RoundHistory) -> dict[str, Any]:
        self.last, self.rows = found.round, self.rows + 1
        digest = found.digest or Digest()
        if digest.mapped:
            self.map_round = found.round
        row: dict[str, Any] = {
            "round": found.round,
            "title": words(found.title),
            "seconds": number(found.seconds),
            "progress": found.progress,
            "asked": found.asked,
            "reported": found.reported,
            "on": found.measured_on,
            "accuracy": number(found.accuracy),
            "loss": number(found.loss),
            "up": found.bytes_up,
            "down": found.bytes_down,
            "clusters": [
                [name(each.key), each.devices, number(each.loss), number(each.accuracy)]
                for each in found.clusters[:CLUSTERS]
            ],
            "moved": self._moved(digest.assigned),
        }
        if found.abandoned:
            row["abandoned"] = words(found.abandoned)
        if found.events:
            row["events"] = [[each.kind, words(each.text)] for each in found.events[:EVENTS]]
        if digest.worked is not None:
            row["slow"] = [name(digest.slowest), number(digest.worked)]
        return row

    def map(self, rounds: Iterable[RoundHistory]) -> dict[str, Any]:
        """The map of the first of these rounds, which is `map_round`, with its devices."""
        found = next(iter(rounds), None)
        self.places = places(found) if found else {"round": self.map_round, "points": []}
        return self.places

    def _moved(self, assigned: Mapping[DeviceId, ModelKey]) -> dict[str, str]:
        """The devices whose cluster is another one than after the rounds before, with that cluster."""
        known = self._clusters
        moved = {device: key for device, key in assigned.items() if known.get(device, "") != key}
        known.update(moved)
        return {name(device): name(key) for device, key in moved.items()}


def places(found: RoundHistory) -> dict[str, Any]:
    """The map of the devices as of a round; see `shoal.core.server_kit.history.records.Position`."""
    return {
        "round": found.progress,
        "points": [
            {"device": name(device)} | {axis: number(value) for axis, value in vars(place).items()}
            for device, place in found.positions.items()
        ],
    }
