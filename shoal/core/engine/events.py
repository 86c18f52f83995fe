"""What the round engine takes in (events) and what it asks for (effects): plain frozen values.

The driver carries effects out in the order in which they are returned. `Save`, `Opened` and `SteppedIn` come
before any `Offer` that depends on them, so that a device never gets a task that a crash could make the server
forget.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.core.algorithm import State
from shoal.core.engine.policy import RoundPolicy
from shoal.core.engine.round.attendance import Memory
from shoal.core.exchange.messages import Message
from shoal.core.types import DeviceId


@dataclass(frozen=True)
class Joined:
    """A device has started a new session: its older leases are void."""

    device: DeviceId


@dataclass(frozen=True)
class Heard:
    """A device gave a sign of life. now: when, on the clock of the ticks, or 0 for the time of the last tick.

    Ticks may be late, for example while a full disk holds a decision up. That must not make devices look
    silent which have called all the time.
    """

    device: DeviceId
    now: float = 0.0


@dataclass(frozen=True)
class Left:
    """A device has said that it goes; it may come back. Nothing waits for it.

    for_good: it was revoked, so it cannot come back, and its task counts as failed. It may be away already.
    """

    device: DeviceId
    reason: str = "it left"
    for_good: bool = False


@dataclass(frozen=True)
class Reported:
    """A report was checked and stored. It counts from now on."""

    device: DeviceId
    round: int
    attempt: int


@dataclass(frozen=True)
class Failed:
    """A device could not do its task, or what it sent was refused. asks: whether it will do it once its owner
    allows that."""

    device: DeviceId
    round: int
    attempt: int
    reason: str
    asks: bool = False


@dataclass(frozen=True)
class Reduced:
    """The reduction that `Reduce` asked for is done, with this result."""

    round: int
    state: State


@dataclass(frozen=True)
class Damaged:
    """The stored reports of these devices are damaged, and do not count any more. reason: for people."""

    round: int
    devices: tuple[DeviceId, ...]
    reason: str


@dataclass(frozen=True)
class Changed:
    """An operator has changed the run: from now on it has this policy and this state."""

    policy: RoundPolicy
    state: State


@dataclass(frozen=True)
class RolledBack:
    """The run has to go on with another state, immediately. reason: for people."""

    state: State
    reason: str


@dataclass(frozen=True)
class Tick:
    """The time, in seconds, on any clock that never runs backwards."""

    now: float


Event = Joined | Heard | Left | Reported | Failed | Reduced | Damaged | Changed | RolledBack | Tick


@dataclass(frozen=True)
class Opened:
    """Store that this round asks these devices, so that the same ones are asked again after a crash."""

    round: int
    devices: tuple[DeviceId, ...]
    title: str


@dataclass(frozen=True)
class SteppedIn:
    """Store that the open round asks these devices as well: in place of others, or since it decides about
    all."""

    round: int
    devices: tuple[DeviceId, ...]


@dataclass(frozen=True)
class Offer:
    """Lease a task to a device."""

    device: DeviceId
    round: int
    attempt: int
    seed: int
    title: str
    message: Message


@dataclass(frozen=True)
class Withdraw:
    """Take back a device's task: it is not needed any more. reason: for people."""

    device: DeviceId
    round: int
    reason: str


@dataclass(frozen=True)
class Reduce:
    """Call the algorithm's reduce with the stored reports of these devices (sorted), then feed Reduced."""

    round: int
    devices: tuple[DeviceId, ...]


@dataclass(frozen=True)
class Save:
    """A round is over: store the state that round `round` will open with.

    missing: the devices that the round before had asked and whose reports do not count, and why. memory: what
    the run remembers of its devices, for a restart.
    """

    round: int
    state: State
    abandoned_in_a_row: int
    missing: Mapping[DeviceId, str]
    memory: Memory


@dataclass(frozen=True)
class Abandon:
    """A round ended without a result. The algorithm plans it again."""

    round: int
    reason: str


@dataclass(frozen=True)
class Finished:
    """The run is over. failed: it was given up, and `reason` says why."""

    failed: bool
    reason: str


Effect = Opened | SteppedIn | Offer | Withdraw | Reduce | Save | Abandon | Finished
