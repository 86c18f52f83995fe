"""The states of a device in a run, as a table. A step that is not in it is an IllegalEvent and changes
nothing.

    ABSENT, IDLE, WORKING --joined--> IDLE
    IDLE --offered--> WORKING
    WORKING --reported | failed | released--> IDLE
    IDLE, WORKING --left--> ABSENT

A device that joins while it is here has started a new session. Its attempt number goes up, which fences off
what its earlier process may still send. `scripts/diagrams` writes the lines above from the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from shoal.core.errors import IllegalEvent


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
    """attempt: how often the device has joined; it fences leases. seen: when it was last heard from,
    seconds."""

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
