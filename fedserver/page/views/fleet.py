"""The fleet: every device, and what each run that goes on waits for."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedserver.authority.answers import Known
from fedserver.coordinator.status_types import DeviceStatus, RunSummary, ServerStatus
from fedserver.page.views.texts import name, words
from shoal.core.types import DeviceId

SAME = 1.5
"""Two estimates of one moment differ by less than this many seconds, since the server reports how long ago it
was and calls take time; then the earlier one stays, and the document is unchanged."""


class Fleet:
    """Makes the documents of one server, one after another, so that what did not change stays equal."""

    def __init__(self) -> None:
        self._moments: dict[tuple[str, str], float] = {}

    def devices(self, status: ServerStatus, known: Sequence[Known], now: float) -> list[dict[str, Any]]:
        """Every device that is not revoked. known: the registry; empty for a server without certificates.

        now: seconds since 1970.
        """
        registry = {each.device: each for each in known}
        found = {each.device: each for each in status.devices}
        return [
            self._device(device, found.get(device), registry, now)
            for device in sorted({*found, *registry})
            if not _is_gone(registry.get(device))
        ]

    def run(self, run: RunSummary, now: float) -> dict[str, Any]:
        """One run, as lists show it. until: when it stops waiting, next: when
        the run that follows it starts, in seconds since 1970."""
        left = run.time_left
        return {
            "run": name(run.run),
            "id": run.run,
            "algorithm": name(run.algorithm),
            "stage": run.stage,
            "over": run.over,
            "progress": run.progress,
            "rounds": run.rounds,
            "title": words(run.title),
            "waiting_for": words(run.waiting_for),
            "waiting": [name(device) for device in run.waiting_devices],
            "until": None if left is None else self._moment("until", run.run, now + left),
            "next": None if run.next_run is None else self._moment("next", run.run, now + run.next_run),
            "created": run.created,
            "clusters": run.cluster_count,
            "accuracy": run.accuracy,
            "numbers": run.numbers,
        }

    def _device(
        self, device: DeviceId, status: DeviceStatus | None, registry: Mapping[DeviceId, Known], now: float
    ) -> dict[str, Any]:
        known = registry.get(device)
        ago = status.last_seen if status else None
        seen = known.last_seen if known and ago is None else None if ago is None else now - ago
        labels = known.labels if known else {}
        lease = status.lease if status else None
        return {
            "device": name(device),
            "state": status.presence if status else "absent",
            "seen": None if seen is None else self._moment("seen", device, seen),
            "software": words(status.software) if status else "",
            "run": name(lease[0]) if lease else "",
            "role": known.role.value if known else "",
            "standing": known.standing.value if known else "",
            "labels": {name(key): name(value) for key, value in sorted(labels.items())},
        }

    def _moment(self, kind: str, whose: str, at: float) -> float:
        """This moment, or the one that was given before if it may be the same."""
        before = self._moments.get((kind, whose))
        if before is None or abs(before - at) > SAME:
            self._moments[kind, whose] = before = round(at, 1)
        return before


def _is_gone(known: Known | None) -> bool:
    return known is not None and known.standing.ended
