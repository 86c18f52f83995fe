"""What happens at the ports that an operator should know of, as a line of `fedserver status`."""

import time
from collections import Counter

MINUTE = 60.0
NOTABLE = 60
"""Refused calls in a minute that deserve a line; a few are part of every day."""
MAX_CALLERS = 1024


class Attention:
    """Counts the refused calls of one port, by caller, in the last full minute and in this one."""

    def __init__(self, port: str) -> None:
        self._port = port
        self._begun = -2 * MINUTE
        self._now: Counter[str] = Counter()
        self._before: Counter[str] = Counter()

    def refused(self, caller: str) -> None:
        """A call was refused. caller: its network address."""
        self._turn()
        if caller in self._now or len(self._now) < MAX_CALLERS:
            self._now[caller] += 1
        else:
            self._now["others"] += 1

    def notices(self) -> tuple[str, ...]:
        """One sentence, or none."""
        self._turn()
        found = max(self._now, self._before, key=Counter.total)
        if found.total() < NOTABLE:
            return ()
        ((caller, most),) = found.most_common(1)
        return (
            f"{self._port}: {found.total()} calls were refused in a minute, {most} of them from {caller}."
            " Devices in good standing are served; a firewall can keep the caller away",
        )

    def _turn(self) -> None:
        now = time.monotonic()
        if now - self._begun >= MINUTE:
            self._before = self._now if now - self._begun < 2 * MINUTE else Counter()
            self._now, self._begun = Counter(), now
