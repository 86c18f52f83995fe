"""A device as the server knows it while it runs."""

import asyncio
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from fedserver.store.blobs import Upload
from fedserver.store.records import DeviceRecord
from shoal.core.types import DeviceId, RunId

GRANTS = 16
"""How many blobs a newcomer may still fetch that it was told of."""


REPLACED = 8
"""How many sessions are remembered that a later hello of the same device made void."""


class Signal:
    """Take `next()` before looking at what may change, then `wait` on it: so that no change is missed."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Set by the next `fire`."""
        return self._next

    def fire(self) -> None:
        self._next.set()
        self._next = asyncio.Event()


async def fired_within(event: asyncio.Event, seconds: float) -> bool:
    """Whether it came in time."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()


@dataclass
class Visitor:
    """session: "" before the first hello and after the device left. joined: the runs that it joined since.
    replaced: the last sessions before this one.

    given: the run whose task it was given last, which is the one that it works on.
    granted: blobs that answers to a placement named, and their run.
    taken: for each run its last round, and how many bytes of uploads came in it.
    polling: calls that wait for a task. sent_finished: it knows that no run is left.
    changed: something may be there for it. first_seen, last_seen: clock times; noted: they are on disk.
    """

    device: DeviceId
    software: str = ""
    session: str = ""
    replaced: tuple[str, ...] = ()
    first_seen: float = 0.0
    last_seen: float = 0.0
    joined: set[RunId] = field(default_factory=set)
    given: RunId = ""
    granted: dict[str, RunId] = field(default_factory=dict)
    uploads: dict[str, Upload] = field(default_factory=dict)
    taken: dict[RunId, tuple[int, int]] = field(default_factory=dict)
    polling: int = 0
    sent_finished: bool = False
    noted: bool = True
    changed: Signal = field(default_factory=Signal)

    def begin(self, software: str) -> str:
        """A new session: whatever an earlier one had is void."""
        if self.session:
            self.replaced = (*self.replaced, self.session)[-REPLACED:]
        self.session, self.software = secrets.token_urlsafe(24), software
        self.joined, self.sent_finished = set(), False
        for upload in self.uploads.values():
            upload.close()
        self.changed.fire()
        return self.session

    def end(self) -> None:
        self.session = ""
        self.changed.fire()

    def seen(self) -> None:
        self.last_seen, self.noted = time.time(), False
        self.first_seen = self.first_seen or self.last_seen

    def grant(self, names: list[str], run: RunId) -> None:
        """It may fetch these blobs, which answers to it named."""
        for name in names:
            self.granted.pop(name, None)
            self.granted[name] = run
        for name in list(self.granted)[:-GRANTS]:
            del self.granted[name]

    def takes(self, run: RunId, round: int, size: int) -> int:
        """So many bytes more of an upload came; how many those of the round are by now."""
        last, before = self.taken.get(run, (round, 0))
        self.taken[run] = round, size + (before if last == round else 0)
        return self.taken[run][1]

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a call that waits: the device is there for as long as it lasts."""
        self.polling += 1
        try:
            yield
        finally:
            self.polling -= 1

    def record(self) -> DeviceRecord:
        return DeviceRecord(self.device, self.software, self.first_seen, self.last_seen)
