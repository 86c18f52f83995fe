"""What happened in a run, one row for each round that is over, as the browser keeps it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fedserver.page.views.run import number
from fedserver.page.views.texts import name, words
from shoal.core.server_kit.history.records import RoundHistory
from shoal.core.types import DeviceId, ModelKey

EVENTS, CLUSTERS = 20, 64
"""How many events and clusters of one round are shown."""


@dataclass
class Past:
    """The rounds of one run, taken one after another. created: when the run was started.

    last: the number of the last round that was taken, rows: how many were. places: the last map of devices.
    seen: how things stood when all of it was taken; while they stand so, there is nothing new.
    """

    created: float | None = None
    last: int = 0
    rows: int = 0
    seen: object = None
    places: dict[str, Any] = field(default_factory=dict)
    _clusters: dict[DeviceId, ModelKey] = field(default_factory=dict)

    def take(self, rounds: Iterable[RoundHistory]) -> list[dict[str, Any]]:
        """The rows of the next rounds."""
        return [self._row(each) for each in rounds]

    def _row(self, found: RoundHistory) -> dict[str, Any]:
        self.last, self.rows = found.round, self.rows + 1
        if found.positions:
            self.places = places(found)
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
            "moved": self._moved(found),
        }
        if found.abandoned:
            row["abandoned"] = words(found.abandoned)
        if found.events:
            row["events"] = [[each.kind, words(each.text)] for each in found.events[:EVENTS]]
        if (slow := _slowest(found)) is not None:
            row["slow"] = slow
        return row

    def _moved(self, found: RoundHistory) -> dict[str, str]:
        """The devices whose cluster is another one than after the rounds before, with that cluster."""
        moved = {}
        for each in found.devices:
            if each.cluster != self._clusters.get(each.device, ""):
                self._clusters[each.device] = each.cluster
                moved[name(each.device)] = name(each.cluster)
        return moved


def _slowest(found: RoundHistory) -> list[Any] | None:
    """The device that worked longest in a round, and for how many seconds; None if no time is known."""
    worked = [(each.worked, each.device) for each in found.devices if each.worked is not None]
    if not worked:
        return None
    seconds, device = max(worked)
    return [name(device), number(seconds)]


def places(found: RoundHistory) -> dict[str, Any]:
    """The map of the devices as of a round; see `shoal.core.server_kit.history.records.Position`."""
    return {
        "round": found.round,
        "points": [
            {"device": name(device)} | {axis: number(value) for axis, value in vars(place).items()}
            for device, place in found.positions.items()
        ],
    }
