"""What the round engine is told, and what it asks for: plain frozen values.

Effects are carried out in the order in which they stand. `Save` and `Opened` come before any `Offer` that
depends on them, so that whatever a device is told to do is already on disk.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.core.algorithm import State
from shoal.core.exchange.messages import Message
from shoal.core.types import DeviceId


@dataclass(frozen=True)
class Joined:
    """A device is there, and starts anew: older leases of it are void."""

    device: DeviceId


@dataclass(frozen=True)
class Heard:
    """A device showed that it lives."""

    device: DeviceId


@dataclass(frozen=True)
class Left:
    """A device is gone; it may come back."""

    device: DeviceId
    reason: str = "it left"


@dataclass(frozen=True)
class Reported:
    """A report was checked and stored: it counts from here on."""

    device: DeviceId
    round: int
    attempt: int


@dataclass(frozen=True)
class Failed:
    """A device could not do its task, or what it sent was refused."""

    device: DeviceId
    round: int
    attempt: int
    reason: str


@dataclass(frozen=True)
class Reduced:
    """The reduction that `Reduce` asked for is done."""

    round: int
    state: State


@dataclass(frozen=True)
class RolledBack:
    """An operator wants the run to go on with another state, at once. reason: for people."""

    state: State
    reason: str


@dataclass(frozen=True)
class Tick:
    """Time, in seconds on any clock that never runs backwards."""

    now: float


Event = Joined | Heard | Left | Reported | Failed | Reduced | RolledBack | Tick


@dataclass(frozen=True)
class Opened:
    """Remember that this round asks these devices: after a crash the same ones are asked again."""

    round: int
    devices: tuple[DeviceId, ...]
    title: str


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
    """A device's task is not needed any more."""

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
    """A round is over: keep the state with which round `round` will open.

    missing: who was asked in the round before and did not count, and why.
    """

    round: int
    state: State
    abandoned_in_a_row: int
    missing: Mapping[DeviceId, str]


@dataclass(frozen=True)
class Abandon:
    """A round ended without a result; the algorithm plans it again."""

    round: int
    reason: str


@dataclass(frozen=True)
class Finished:
    """The run is over. failed: it gave up."""

    failed: bool
    reason: str


Effect = Opened | Offer | Withdraw | Reduce | Save | Abandon | Finished
