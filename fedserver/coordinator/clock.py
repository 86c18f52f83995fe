"""Whether the server's clock can be believed.

Nothing that is signed has a time in it that anyone checks. But join strings end by this clock, runs of a
series begin by it, and every line of the audit log has its time. So a jump of an hour or more is shown to
operators: while the server runs, against a clock that only counts; at its start, against the newest line of
the audit log. Each stop and each start writes such a line, so with a restart an operator says that the clock
is right.
"""

import time

from shoal.core.texts import span

JUMP = 3600.0
"""Seconds. A join string is valid for an hour unless an operator says something else."""


def counted() -> float:
    """Seconds since some moment, also those for which the machine slept."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Clock:
    """The clock on the wall, from the start of the server.

    newest: the time of the last line of the audit log, in seconds since 1970; None if it says none.
    """

    def __init__(self, newest: float | None) -> None:
        now = time.time()
        self._ahead = now - counted()
        self._behind = 0.0 if newest is None else newest - now

    def notices(self) -> tuple[str, ...]:
        """A sentence for operators, or none."""
        jump = time.time() - counted() - self._ahead
        if abs(jump) >= JUMP:
            what = f"was set {'forward' if jump > 0 else 'back'} by {span(abs(jump))} while it ran"
        elif self._behind >= JUMP:
            what = f"is {span(self._behind)} behind the end of the audit log"
        else:
            return ()
        return (
            f"the server's clock {what}: join strings end by it, and runs of a series begin by it. Set it; if"
            " it is right, restart the server",
        )
