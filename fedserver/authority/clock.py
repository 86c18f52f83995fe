"""Whether the server's clock can be believed: a certificate that is signed by a wrong one is worth nothing,
and a fleet that has such certificates is locked out once the clock is right again.

While the server runs, the wall clock is compared with one that only counts; at its start, with the newest
line of the audit log. Where they differ by a day or more, `status` says so, and nothing is signed: the
certificates that devices have stay in use. Each stop and each start writes such a line, so with a restart an
operator says that the clock is right.
"""

import time

from shoal.core.errors import Unavailable

DAY = 86400.0
JUMP = DAY
"""Seconds. A device's certificate is valid from a day before it is signed, so less does no harm."""


def counted() -> float:
    """Seconds since some moment, also those for which the machine slept."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Clock:
    """The wall clock, since this object was made."""

    def __init__(self) -> None:
        self._ahead, self._behind = time.time() - counted(), 0.0

    def began_after(self, newest: float) -> None:
        """The server has started. newest: the time of the last line of the audit log, seconds since 1970."""
        self._behind = newest - time.time()

    def doubt(self) -> str:
        """Why the clock is in doubt, in words; "" if it is not."""
        jump = time.time() - counted() - self._ahead
        if abs(jump) >= JUMP:
            way = "forward" if jump > 0 else "back"
            return f"the server's clock was set {way} by {abs(jump) / DAY:.1f} days while it ran"
        if self._behind >= JUMP:
            return f"the server's clock is {self._behind / DAY:.1f} days behind the end of the audit log"
        return ""

    def check(self) -> None:
        """Raises Unavailable while it is in doubt."""
        if doubt := self.doubt():
            raise Unavailable(f"no certificate is signed now: {doubt}", "the server's operator sees it, too")

    def notices(self) -> tuple[str, ...]:
        """For operators."""
        if doubt := self.doubt():
            return (f"{doubt}, so no certificate is signed: set it; if it is right, restart the server",)
        return ()
