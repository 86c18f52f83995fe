"""Which devices a run counts on: those that took part before, less those that have stopped answering.

A device misses a task if it has gone silent, or has not answered in the time that it had. After two misses
in a row it pauses: it is asked only in every fourth round, then in every eighth, and so on up to every 32nd.
The rounds are the same ones for all devices with as many misses, so most rounds are free of such devices.
One answered task ends the pause.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shoal.core.types import DeviceId

PAUSED_AFTER = 2
"""How many tasks in a row a device may miss before it pauses."""
LONGEST_PAUSE = 32
"""A device that pauses is asked at least once in this many rounds."""


@dataclass(frozen=True)
class Memory:
    """What a run remembers of its devices from one round to the next, and across a restart of the server.

    fleet: the devices that took part when the last round ended, or were there when the run began, sorted.
    misses: how many tasks in a row a device has missed; a device that is not named has missed none. typical:
    by kind of task, how many seconds nine of ten devices needed at most in the last round that had such
    tasks.
    """

    fleet: tuple[DeviceId, ...] = ()
    misses: Mapping[DeviceId, int] = field(default_factory=dict)
    typical: Mapping[str, float] = field(default_factory=dict)


def period(misses: int) -> int:
    """A device with this many misses in a row is asked in every how-many-th round."""
    return 1 if misses < PAUSED_AFTER else min(2**misses, LONGEST_PAUSE)


class Attendance:
    """fleet: the devices that the next round should have. returning: those of them that have not come back
    since the server's restart, or since the run began. gone: those that cannot come back, as far as anyone
    has said so since the restart. misses: see `Memory`."""

    def __init__(self, memory: Memory, asked: Iterable[DeviceId] = ()) -> None:
        self.misses = {device: count for device, count in memory.misses.items() if count > 0}
        self.fleet = {device for device in (*memory.fleet, *asked) if not self._pauses(device)}
        self.returning = set(self.fleet)
        self.gone: set[DeviceId] = set()
        self._said_goodbye: set[DeviceId] = set()

    def _pauses(self, device: DeviceId) -> bool:
        return self.misses.get(device, 0) >= PAUSED_AFTER

    def joined(self, device: DeviceId) -> None:
        """A device is here. One that was shut out may come back once an operator has let it in again."""
        self.gone.discard(device)
        self.returning.discard(device)
        self._said_goodbye.discard(device)

    def said_goodbye(self, device: DeviceId, *, for_good: bool = False) -> None:
        """A device left by its own will, or was shut out: nothing waits for it."""
        if for_good:
            self.gone.add(device)
        self.fleet.discard(device)
        self.returning.discard(device)
        self._said_goodbye.add(device)

    def has_left(self, device: DeviceId) -> bool:
        """Whether a device has left by its own will, and may come back."""
        return device in self._said_goodbye and device not in self.gone

    def answered(self, device: DeviceId) -> None:
        self.misses.pop(device, None)

    def missed(self, device: DeviceId, round: int) -> str:
        """Count a task that a device missed in a round. Returns when it is asked again, for people."""
        count = self.misses[device] = self.misses.get(device, 0) + 1
        if not self._pauses(device):
            return ""
        every = period(count)
        left_out = every - round % every - 1
        pause = f" and pauses for up to {left_out} round{'s' * (left_out > 1)}" if left_out else ""
        return f"; it has missed {count} tasks in a row{pause}"

    def ended(self, took_part: Iterable[DeviceId]) -> None:
        """A round has ended in which these devices took part, or during which they were here."""
        stay = {*took_part, *self.returning} - self._said_goodbye
        self.fleet = {device for device in stay if not self._pauses(device)}

    def memory(self, typical: Mapping[str, float]) -> Memory:
        """What is stored for a restart."""
        return Memory(tuple(sorted(self.fleet)), dict(sorted(self.misses.items())), typical)

    def ready(self, present: list[DeviceId], round: int, least: int) -> list[DeviceId]:
        """Those of the present devices that a round may ask, sorted: all that do not pause. If these are
        fewer than `least`, those that have missed the fewest tasks are asked as well."""
        paused = [device for device in present if round % period(self.misses.get(device, 0))]
        if not paused:
            return present
        ready = sorted({*present} - {*paused})
        fewest = sorted(paused, key=lambda device: (self.misses[device], device))
        return sorted((*ready, *fewest[: max(0, least - len(ready))]))
