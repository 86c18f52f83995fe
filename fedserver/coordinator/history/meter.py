"""Counts in memory: bytes for the journal and for the history of runs, and what monitoring asks for."""

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from fedserver.store.integrity.records import Traffic
from shoal.core.types import DeviceId, RunId


class Meter:
    """What has happened since the server was started.

    reports: by outcome: accepted, failed, refused, late or duplicate. refusals: calls that ended in an error,
    by its code. rounds: done or abandoned. seconds: by phase of a round: devices (from its opening until its
    reports are in), combine and save. uploaded, downloaded: bytes of blobs.
    """

    def __init__(self) -> None:
        self.reports: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.rounds: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.uploaded = self.downloaded = 0
        self._up: Counter[tuple[RunId, DeviceId]] = Counter()
        self._down: Counter[tuple[RunId, DeviceId]] = Counter()
        self._rounds: dict[RunId, dict[DeviceId, tuple[int, int]]] = {}

    def up(self, run: RunId, device: DeviceId, size: int) -> None:
        self.uploaded += size
        self._up[run, device] += size
        self._in_round(run, device, size, 0)

    def down(self, run: RunId, device: DeviceId, size: int) -> None:
        self.downloaded += size
        self._down[run, device] += size
        self._in_round(run, device, 0, size)

    def _in_round(self, run: RunId, device: DeviceId, up: int, down: int) -> None:
        known = self._rounds.setdefault(run, {})
        before = known.get(device, (0, 0))
        known[device] = (before[0] + up, before[1] + down)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time that the block takes to the seconds of this phase."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.add_seconds(name, time.monotonic() - began)

    def refused(self, code: str) -> None:
        """A call ended in an error with this code."""
        self.refusals[code] += 1

    def add_seconds(self, phase: str, seconds: float) -> None:
        self.seconds[phase] += seconds  # type: ignore[assignment]

    def take_round(self, run: RunId) -> dict[DeviceId, tuple[int, int]]:
        """Return the bytes that each device has sent and fetched in a run, and reset them to zero."""
        return self._rounds.pop(run, {})

    def give_back(self, taken: Iterable[Traffic]) -> None:
        """Add back what was taken but could not be stored."""
        for each in taken:
            self._up[each.run, each.device] += each.up
            self._down[each.run, each.device] += each.down

    def take(self) -> list[Traffic]:
        """Return the bytes of all devices since the last call, and reset them to zero."""
        keys = sorted({*self._up, *self._down})
        taken = [Traffic(device, run, self._up[run, device], self._down[run, device]) for run, device in keys]
        self._up.clear()
        self._down.clear()
        return taken
