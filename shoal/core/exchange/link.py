"""What a device may ask of a server. The coordinator is one, the gRPC client is one, tests wrap one.

A Link is bound to one device: no call names who is calling.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from shoal.core.exchange.parts import ClusterAssignment, Evidence
from shoal.core.exchange.payload import BlobRef, Payload, Weights
from shoal.core.types import RunId

PROTOCOL = 1
"""Version of the exchange; a server serves this one and the one before."""


@dataclass(frozen=True)
class Hello:
    """A device says what it is. capabilities: names of optional things it can do.

    mark: the last one that this server gave it, "" for none.
    """

    software: str
    oldest_protocol: int = PROTOCOL
    newest_protocol: int = PROTOCOL
    capabilities: tuple[str, ...] = ()
    mark: str = ""


@dataclass(frozen=True)
class Welcome:
    """The server answers, and sets every cadence. Times in seconds.

    session: opaque; a later hello of the same device makes it void.
    poll: how long one `next_task` may wait. heartbeat: call `alive` this often while you work.
    spread: up to how long to wait before coming back from a lost connection.
    renew_in: seconds until the device should renew its certificate; None: there are no certificates.
    mark: an opaque point of the server's history, to be kept on the device's disk; "" to keep the last one.
    """

    software: str
    protocol: int
    session: str
    poll: float
    heartbeat: float
    spread: float = 1.0
    renew_in: float | None = None
    mark: str = ""


@dataclass(frozen=True)
class ObservedRun:
    """A run as an observer sees it. stage: waiting, open, reducing, finished, failed or stopped.

    round: the one that is open or will open next. title: of the open round, for people; "" when none is.
    """

    run: RunId
    algorithm: str
    stage: str
    round: int
    title: str = ""

    @property
    def over(self) -> bool:
        return self.stage in ("finished", "failed", "stopped")


@dataclass(frozen=True)
class Observation:
    """What an observer gets: the runs, newest first, and in how many seconds it has to renew."""

    runs: tuple[ObservedRun, ...]
    renew_in: float


@dataclass(frozen=True)
class Task:
    """One unit of work, leased. (run, round) with the device says which; `attempt` fences older leases.

    seed: where the device's shuffling starts from. title: for people.
    """

    run: RunId
    round: int
    attempt: int
    seed: int
    title: str
    payload: Payload


@dataclass(frozen=True)
class Idle:
    """Nothing to do now: come back between `earliest` and `latest` seconds from now.

    finished: no run is left that could need this device.
    going_on: the runs that a device may remember something of; None where the server does not know them all.
    """

    reason: str
    earliest: float
    latest: float
    finished: bool = False
    going_on: tuple[RunId, ...] | None = None


@dataclass(frozen=True)
class Failure:
    """A device could not do its task. details: a traceback of the author's code, bounded."""

    code: str
    message: str
    details: str = ""


@dataclass(frozen=True)
class Report:
    """The result of a task: a payload, or why there is none."""

    run: RunId
    round: int
    attempt: int
    result: Payload | Failure


class Outcome(Enum):
    """What became of a report."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    LATE = "late"
    REFUSED = "refused"


@dataclass(frozen=True)
class Receipt:
    """What became of a report, and why when it was not taken. mark: as in a Welcome."""

    outcome: Outcome
    reason: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Question:
    """What a newcomer must compute first: a message whose answer is evidence, such as Describe."""

    run: RunId
    payload: Payload


@dataclass(frozen=True)
class Placement:
    """The answer to a newcomer.

    model: that of the cluster; when the server abstained, that of the nearest one, for an owner who wants it
    all the same, or None.
    """

    run: RunId
    assignment: ClusterAssignment
    model: Weights | None


class Link(Protocol):
    """All calls raise ShoalErrors only; Unavailable means: try the same call again later."""

    async def hello(self, hello: Hello) -> Welcome: ...

    async def next_task(self, wait: float) -> Task | Idle:
        """The task that is leased to this device, waiting up to `wait` seconds for one."""
        ...

    async def alive(self, run: RunId, round: int, attempt: int) -> bool:
        """Say that the device is still working. False: stop, the result is no longer needed."""
        ...

    def fetch(self, blob: BlobRef, start: int) -> AsyncIterator[bytes]:
        """The bytes of a blob from `start` on, in chunks."""
        ...

    async def uploaded(self, blob: BlobRef) -> int:
        """How many bytes of this blob the server holds for sure: go on from there."""
        ...

    async def upload(self, blob: BlobRef, start: int, chunks: AsyncIterator[bytes]) -> int:
        """Send bytes from `start` on; how many the server now holds for sure."""
        ...

    async def report(self, report: Report) -> Receipt: ...

    async def leave(self) -> None: ...

    async def place(self, run: RunId, evidence: Evidence | None) -> Question | Placement:
        """Which model fits a device that does not train. run: "" for the newest that can place."""
        ...
