"""The states of a device in a run, as a table. A step that is not in it is an IllegalEvent and changes
nothing.

    ABSENT, IDLE, WORKING --joined--> IDLE
    IDLE --offered--> WORKING
    WORKING --reported | failed | released--> IDLE
    IDLE, WORKING --left--> ABSENT

A device that joins while it is here has started a new session. Its attempt number goes up, which fences off
what its earlier process may still send. `scripts/diagrams` writes the lines above from the table.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from shoal.core.errors import IllegalEvent
from shoal.core.types import DeviceId


class Presence(Enum):
    ABSENT = "absent"
    IDLE = "idle"
    WORKING = "working"


class Step(Enum):
    JOINED = "joined"
    OFFERED = "offered"
    REPORTED = "reported"
    FAILED = "failed"
    RELEASED = "released"
    LEFT = "left"


TRANSITIONS: Mapping[tuple[Presence, Step], Presence] = {
    (Presence.ABSENT, Step.JOINED): Presence.IDLE,
    (Presence.IDLE, Step.JOINED): Presence.IDLE,
    (Presence.WORKING, Step.JOINED): Presence.IDLE,
    (Presence.IDLE, Step.OFFERED): Presence.WORKING,
    (Presence.WORKING, Step.REPORTED): Presence.IDLE,
    (Presence.WORKING, Step.FAILED): Presence.IDLE,
    (Presence.WORKING, Step.RELEASED): Presence.IDLE,
    (Presence.IDLE, Step.LEFT): Presence.ABSENT,
    (Presence.WORKING, Step.LEFT): Presence.ABSENT,
}


@dataclass(frozen=True)
class Session:
    """attempt: how often the device has joined; it fences leases. seen: when the device itself last called,
    seconds. What the server does, such as an offer, is no sign of life."""

    presence: Presence = Presence.ABSENT
    attempt: int = 0
    seen: float = 0.0

    def after(self, step: Step) -> "Session":
        """The session after one step. Raises IllegalEvent when the table has no such transition."""
        try:
            presence = TRANSITIONS[self.presence, step]
        except KeyError:
            raise IllegalEvent(f"a device that is {self.presence.value} has no step '{step.value}'") from None
        attempt = self.attempt + 1 if step is Step.JOINED else self.attempt
        return replace(self, presence=presence, attempt=attempt)


class Sessions(Mapping[DeviceId, Session]):
    """The sessions of all devices that have joined a run, by device.

    Every change costs the same, whatever the number of devices: the devices that are here are held in the
    order in which they were last heard from, so only those that have been silent for too long are looked at.
    """

    def __init__(self) -> None:
        self._all: dict[DeviceId, Session] = {}
        self._here: dict[DeviceId, None] = {}  # the one that was heard from first comes first

    def __getitem__(self, device: DeviceId) -> Session:
        return self._all[device]

    def __iter__(self) -> Iterator[DeviceId]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def of(self, device: DeviceId) -> Session:
        """The session of a device; one that is absent for a device that has never joined."""
        return self._all.get(device) or Session()

    def is_here(self, device: DeviceId) -> bool:
        return device in self._here

    @property
    def present(self) -> list[DeviceId]:
        """The devices that are here, sorted."""
        return sorted(self._here)

    @property
    def count(self) -> int:
        """How many devices are here."""
        return len(self._here)

    def take(self, device: DeviceId, step: Step) -> Session:
        """Let a device take a step. Raises IllegalEvent when the table has no such transition."""
        session = self._all[device] = self.of(device).after(step)
        if step is Step.LEFT:
            self._here.pop(device, None)
        return session

    def hear(self, device: DeviceId, now: float) -> None:
        """Note that a device has just called. A device that has never joined is not noted."""
        if device not in self._all:
            return
        self._all[device] = replace(self._all[device], seen=now)
        self._here.pop(device, None)
        if self._all[device].presence is not Presence.ABSENT:
            self._here[device] = None

    def silent(self, since: float) -> list[DeviceId]:
        """The devices that are here and were last heard from before `since`, sorted."""
        found = []
        for device in self._here:
            if self._all[device].seen >= since:
                break
            found.append(device)
        return sorted(found)
