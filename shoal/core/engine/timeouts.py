"""Every timeout of the product, for both sides: how long one side waits for a sign of life from the other.

Each one starts again with any progress, so that a peer is never failed for being slow. docs/timeouts.md lists
them, with what happens when they expire. Intervals (of polls, heartbeats, pings) are not timeouts, and
neither is what an operator or an owner sets for a run or for one command.
"""

CONNECTION = 20.0
"""Seconds within which a connection must be made, handshakes included, or answer a ping; else it is
dropped."""
ANSWER = 60.0
"""Seconds within which a call must be answered, after the wait that it asks for; else it is tried again."""
STALL = 60.0
"""Seconds within which a transfer must move MIN_BYTES; else it is cut, and resumes at the last chunk."""
FIRST_MESSAGE = 5.0
"""Seconds within which the message of a call must follow its headers at a port that anyone can reach. A
device of the registry has STALL, and for a large message the time that a slow line needs for it."""
DEVICE_TIMEOUT = 60.0
"""Seconds within which a device must be heard from: a call, a heartbeat, a chunk; else it counts as gone."""
GRACE = 20.0
"""Seconds that a stopping server gives to calls in progress and to a round that is being combined."""
MOMENT = 3.0
"""Seconds that a person waits for a server that may not be running, and a stopping device for its goodbye."""

MIN_BYTES = 1 << 16
"""Bytes that a transfer must move in each STALL, which is 1.1 kB/s. A slower peer holds a slot that others
need. Our senders cut transfers into chunks of 256 KiB, which are accepted whole: for them it is 4.4 kB/s."""


class Progress:
    """Whether a transfer makes progress. Times are seconds on any monotonic clock."""

    def __init__(self, now: float) -> None:
        self._since, self._moved = now, 0

    def moved(self, size: int, now: float) -> None:
        """Count `size` more bytes that the other side accepted or sent."""
        self._moved += size
        if self._moved >= MIN_BYTES:
            self._since, self._moved = now, 0

    def until(self) -> float:
        """When the transfer counts as stalled, unless MIN_BYTES bytes move before."""
        return self._since + STALL


def answer(size: int) -> float:
    """Seconds within which a call that sends `size` bytes must be answered; they may be as slow as a
    transfer."""
    return ANSWER + size * STALL / MIN_BYTES
