"""The state of a device that the server keeps in memory."""

import asyncio
import secrets
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from fedserver.store.content.upload import Upload
from fedserver.store.records import DeviceRecord
from shoal.core.exchange.wire import Line
from shoal.core.types import DeviceId, ModelKey, RunId

GRANTS = 16
"""How many of the blobs that placements named last a device may still fetch, and all that the last one
named."""
REPLACED = 8
"""How many earlier sessions of a device are remembered, to tell a replaced session from an unknown one."""


MAX_REPLACED, REPLACED_SECONDS = 3, 300.0
"""Where this many replaced sessions were used within this many seconds, several processes are taken to use
one name: one that says hello again, as after a lost connection, may leave a call of its former session."""


class Quota:
    """What a newcomer may have in a day. By default all, and nothing is counted: see
    `fedserver.authority.daily_quota`."""

    async def allows(self, device: DeviceId, run: RunId, clusters: Collection[ModelKey]) -> bool:
        """Whether it may have the models of these clusters, beside those that it has had today."""
        return True

    async def spend(self, device: DeviceId, run: RunId, clusters: Collection[ModelKey]) -> None:
        """Count the models of these clusters. Raises TooOften."""

    async def spent(self, device: DeviceId) -> int:
        """How many clusters' models, of all runs, it has had today; 0 where it is not counted."""
        return 0

    async def spend_placement(self, device: DeviceId) -> None:
        """Count that it is about to be given its model. Raises TooOften."""


def unlabeled(device: DeviceId) -> Mapping[str, str]:
    """The labels of a device of a server without certificates, which has no registry."""
    return {}


class Signal:
    """Announces changes.

    Call `next()` before reading the state and then wait, so that no change is missed.
    """

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def next(self) -> asyncio.Event:
        """The event that the next `fire` sets."""
        return self._next

    def fire(self) -> None:
        self._next.set()
        self._next = asyncio.Event()


async def fired_within(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event was set within this many seconds."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):  # `wait_for` would keep a task for each device that waits
            await event.wait()
    return event.is_set()


@dataclass
class Visitor:
    """A device that has called since the start.

    session: the current one; "" before the first hello and after the device left. replaced: the sessions
    before it. late: those of them that were used all the same, and when last. joined: the runs that it has
    joined in this session. given: the run of the task that it was given last, which is the one that it works
    on. inlined: the blobs inside of that task. granted: blobs that answers to a placement named, and their
    runs. line: how fast models reach it. taken: for each run the last
    round in which it uploaded, and the bytes uploaded in it. polling: how many of its calls wait for a task.
    sent_finished: whether it knows that no run is left. changed: fires if there may be something new for it.
    first_seen, last_seen: clock times; None until it was heard. noted: whether these are on disk.
    """

    device: DeviceId
    software: str = ""
    session: str = ""
    replaced: tuple[str, ...] = ()
    late: dict[str, float] = field(default_factory=dict)
    first_seen: float | None = None
    last_seen: float | None = None
    joined: set[RunId] = field(default_factory=set)
    given: RunId = ""
    granted: dict[str, RunId] = field(default_factory=dict)
    uploads: dict[str, Upload] = field(default_factory=dict)
    line: Line = field(default_factory=Line)
    inlined: frozenset[str] = frozenset()
    taken: dict[RunId, tuple[int, int]] = field(default_factory=dict)
    polling: int = 0
    sent_finished: bool = False
    noted: bool = True
    changed: Signal = field(default_factory=Signal)

    def begin(self, software: str) -> str:
        """Begin a new session, and return it. The earlier one becomes void, and its uploads are closed."""
        self.inlined = frozenset()
        if self.session:
            self.replaced = (*self.replaced, self.session)[-REPLACED:]
        self.session, self.software = secrets.token_urlsafe(24), software
        self.joined, self.sent_finished = set(), False
        for upload in self.uploads.values():
            upload.close()
        self.changed.fire()
        return self.session

    def called_late(self, session: str) -> None:
        """A call came of a session that was replaced."""
        known = {**self.late, session: time.monotonic()}
        self.late = {each: at for each, at in known.items() if each in self.replaced}

    @property
    def is_shared(self) -> bool:
        """Whether several processes seem to use the name of this device in turn."""
        return sum(time.monotonic() - at < REPLACED_SECONDS for at in self.late.values()) >= MAX_REPLACED

    def end(self) -> None:
        self.session = ""
        self.changed.fire()

    def seen(self) -> None:
        self.last_seen, self.noted = time.time(), False
        if self.first_seen is None:
            self.first_seen = self.last_seen

    def grant(self, names: list[str], run: RunId) -> None:
        """Allow the device to fetch these blobs, which the answer to a placement named."""
        for name in names:
            self.granted.pop(name, None)
            self.granted[name] = run
        for name in list(self.granted)[: -max(GRANTS, len(names))]:
            del self.granted[name]

    def takes(self, run: RunId, round: int, size: int) -> int:
        """Count uploaded bytes, and return how many have been uploaded in this round."""
        last, before = self.taken.get(run, (round, 0))
        self.taken[run] = round, size + (before if last == round else 0)
        return self.taken[run][1]

    def forget_all_but(self, runs: Collection[RunId]) -> None:
        """These are the runs that go on: a device may stay for years, and take part in a run each day."""
        self.joined.intersection_update(runs)
        self.taken = {run: taken for run, taken in self.taken.items() if run in runs}

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Wrap a call that waits; the device counts as present as long as the call lasts."""
        self.polling += 1
        try:
            yield
        finally:
            self.polling -= 1
            self.seen()

    def record(self) -> DeviceRecord:
        """Of a device that was heard."""
        assert self.first_seen is not None
        assert self.last_seen is not None
        return DeviceRecord(self.device, self.software, self.first_seen, self.last_seen)
