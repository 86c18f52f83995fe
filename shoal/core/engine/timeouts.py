"""Every timeout of the product, for both sides: how long one side waits for a sign of the other.

Each begins anew with whatever moves, so that nobody is failed for being slow. docs/timeouts.md has them in a
table, with what happens then. What merely says how often something is done (polls, heartbeats, pings) is no
timeout, nor is what an operator or an owner sets for a run or for one command.
"""

CONNECTION = 20.0
"""Seconds in which a connection must be made, with its handshakes, or answer a ping. Else it is dropped."""
ANSWER = 60.0
"""Seconds in which a call must be answered, after the wait that it asks for. Else the call is tried again."""
STALL = 60.0
"""Seconds in which a transfer must move LEAST bytes. Else it is cut, and goes on at the last chunk."""
DEVICE_TIMEOUT = 60.0
"""Seconds in which a device must be heard of: a call, a heartbeat, a chunk. Else it counts as gone."""
GRACE = 20.0
"""Seconds that a server which ends gives to calls that are under way and to a round being combined."""
MOMENT = 3.0
"""Seconds that a person waits for a server that may not be there, and an ending device for its farewell."""

LEAST = 1 << 16
"""Bytes that a transfer moves in each STALL, 1.1 kB/s: below is not slow but holding a place. Our senders
cut transfers into chunks of 256 KiB, which are taken whole: to them the least is 4.4 kB/s."""


class Progress:
    """Whether a transfer moves. Times are those of any clock that only goes forward, in seconds."""

    def __init__(self, now: float) -> None:
        self._since, self._moved = now, 0

    def moved(self, size: int, now: float) -> None:
        """So many bytes more were taken by the other side, or came from it."""
        self._moved += size
        if self._moved >= LEAST:
            self._since, self._moved = now, 0

    def until(self) -> float:
        """When it counts as stalled unless LEAST bytes move before."""
        return self._since + STALL


def answer(size: int) -> float:
    """Seconds in which a call that sends `size` bytes must be answered: they may be as slow as a transfer."""
    return ANSWER + size * STALL / LEAST
