"""The calls that a device may make to a server, as the protocol `Link`, and the values that they exchange.

The coordinator, the gRPC client and wrappers in tests implement it. A Link is bound to one device, so no call
names its caller.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from shoal.core.exchange.choosing import Wish
from shoal.core.exchange.parts import ClusterAssignment, Evidence
from shoal.core.exchange.payload import BlobRef, Payload, Weights
from shoal.core.exchange.seal import Signed
from shoal.core.types import Bytes, ModelKey, RunId

MAX_ADDRESSES = 16
"""The most servers of one federation that a welcome names."""
PROTOCOL = 1
"""Version of the exchange."""


@dataclass(frozen=True)
class Hello:
    """A device introduces itself. mark: the last mark that this server gave it, "" for none."""

    software: str
    oldest_protocol: int = PROTOCOL
    newest_protocol: int = PROTOCOL
    mark: str = ""


@dataclass(frozen=True)
class Welcome:
    """The server's answer, which sets how often the device calls. All times are in seconds.

    session: opaque; a later hello of the same device invalidates it.
    poll: how long one `next_task` may wait. heartbeat: call `alive` this often during work.
    spread: the maximum of the random wait before reconnecting after a lost connection.
    mark: an opaque point in the server's history, which the device stores on its disk; "": keep the last one.
    addresses: where the device may call, "host:port", this server included; empty: there is only this one.
    """

    software: str
    protocol: int
    session: str
    poll: float
    heartbeat: float
    spread: float = 1.0
    mark: str = ""
    addresses: tuple[str, ...] = ()


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
class Task:
    """A unit of work that is leased to a device. With the device, (run, round) identifies it; a higher
    `attempt` fences off older leases.

    seed: the seed of the device's shuffling. title: for people. terms: of the run, as
    `shoal.core.privacy.asks` reads them; "" for what a device asks of itself. inline: the bytes of some of
    the payload's blobs; the others are fetched. inline_report: bytes of the largest blob that its report may
    carry itself.
    """

    run: RunId
    round: int
    attempt: int
    seed: int
    title: str
    payload: Payload
    terms: str = ""
    inline: tuple[Bytes, ...] = field(default=(), repr=False)
    inline_report: int = 0


@dataclass(frozen=True)
class Idle:
    """The device has nothing to do now. It should call again after `earliest` to `latest` seconds.

    finished: no run is left that could need this device.
    going_on: the runs for which a device may keep its memory; None if the server does not know all of them.
    """

    reason: str
    earliest: float
    latest: float
    finished: bool = False
    going_on: tuple[RunId, ...] | None = None


@dataclass(frozen=True)
class Failure:
    """Says why a device could not do its task. details: a bounded traceback of the author's code."""

    code: str
    message: str
    details: str = ""


@dataclass(frozen=True)
class Report:
    """The result of a task: a payload, or why there is none. inline: the bytes of some of the payload's
    blobs; the others were uploaded."""

    run: RunId
    round: int
    attempt: int
    result: Payload | Failure
    inline: tuple[Bytes, ...] = field(default=(), repr=False)


class Outcome(Enum):
    """What became of a report."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    LATE = "late"
    REFUSED = "refused"


@dataclass(frozen=True)
class Receipt:
    """Says what became of a report, and why if it was not accepted. mark: see `Welcome`."""

    outcome: Outcome
    reason: str = ""
    mark: str = ""


AT = "@"
"""Between the run and the label in the name of a release. No run has it in its name."""


def run_of(name: str) -> RunId:
    """The run of a release, by its name; a run's own name as it is.

    Example:
        >>> run_of("digits@10"), run_of("digits")
        ('digits', 'digits')
    """
    return name.partition(AT)[0]


@dataclass(frozen=True)
class Trial:
    """A release that the device is to try beside the one that it uses. rollout: names the rollout. clusters:
    only if its model is that of one of these clusters; empty: in any case."""

    rollout: str
    release: str
    clusters: tuple[ModelKey, ...] = ()


@dataclass(frozen=True)
class Question:
    """The message that a newcomer has to answer first. The answer is evidence, such as that to Describe; only
    that to Choose is for the newcomer itself, which then has its placement. graph: the run's network, if the
    device wished for it. terms: of the run, as in `Task`; they say whose question this is. release: of which
    the models are, by name, and to which the answer goes; "" for the run as it is now. trial: another release
    to try beside these, or None."""

    run: RunId
    payload: Payload
    graph: BlobRef | None = None
    terms: str = ""
    release: str = ""
    trial: Trial | None = None


@dataclass(frozen=True)
class Placement:
    """The answer to a newcomer.

    model: the cluster's. If the server abstained: that of the nearest cluster, for an owner who wants it
    anyway, or None. graph, release, trial: as in `Question`.
    """

    run: RunId
    assignment: ClusterAssignment
    model: Weights | None
    graph: BlobRef | None = None
    release: str = ""
    trial: Trial | None = None


class Link(Protocol):
    """Calls raise only ShoalErrors. Unavailable means that the same call can be tried again later."""

    async def hello(self, hello: Hello) -> Welcome: ...

    async def next_task(self, wait: float) -> Task | Idle:
        """Get the task that is leased to this device; wait up to `wait` seconds for one."""
        ...

    async def alive(self, run: RunId, round: int, attempt: int) -> bool:
        """Report that the device is still working. False means: stop, the result is no longer needed."""
        ...

    def fetch(self, blob: BlobRef, start: int) -> AsyncIterator[Bytes]:
        """Receive the bytes of a blob from `start` on, in chunks."""
        ...

    async def uploaded(self, blob: BlobRef) -> int:
        """Ask how many bytes of this blob the server has on disk, to continue from there."""
        ...

    async def upload(self, blob: BlobRef, start: int, chunks: AsyncIterator[Bytes]) -> int:
        """Send bytes from `start` on; return how many the server now has on disk."""
        ...

    async def report(self, report: Report) -> Receipt: ...

    async def leave(self) -> None: ...

    async def place(
        self, run: RunId, evidence: Evidence | Wish | None, accept_nearest: bool = False
    ) -> Question | Placement:
        """Ask which model fits a device that does not train. run: a run, a release or a channel; "" for the
        channel `stable`.

        accept_nearest: whether the nearest model is wanted even if no cluster fits.
        """
        ...

    async def seal(self, release: str) -> Signed | None:
        """What the server has signed of a release; None from a server that signs none."""
        ...
