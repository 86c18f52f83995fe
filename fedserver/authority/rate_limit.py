"""So much in a minute and no more, or so much in a second, for each of many who ask."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable

from shoal.core.engine.pacing import Pace

MINUTE = 60.0
MOST_KEYS = 4096
"""How many are remembered at a time; who was not heard of for longest is forgotten."""


class RateLimit:
    """most: times a minute for each key."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def used_up(self, key: str) -> bool:
        """Whether a key has had all its times of the last minute."""
        times = self._times.get(key)
        while times and times[0] <= time.monotonic() - MINUTE:
            times.popleft()
        return times is not None and len(times) >= self._most

    def count(self, key: str) -> None:
        """One more time."""
        times = self._times.setdefault(key, deque(maxlen=self._most))
        times.append(time.monotonic())
        self._times.move_to_end(key)
        while len(self._times) > MOST_KEYS:
            self._times.popitem(last=False)

    def allow(self, key: str) -> bool:
        """Count one more time if there is one left; whether there was."""
        allowed = not self.used_up(key)
        if allowed:
            self.count(key)
        return allowed


class PaceByKey:
    """each: makes the pace of one key, which is another than those of others."""

    def __init__(self, each: Callable[[], Pace]) -> None:
        self._each = each
        self._paces: OrderedDict[str, Pace] = OrderedDict()

    def delay(self, key: str) -> float:
        """0 for a key that may go on now, else in how many seconds it is its turn."""
        pace = self._paces.setdefault(key, self._each())
        self._paces.move_to_end(key)
        while len(self._paces) > MOST_KEYS:
            self._paces.popitem(last=False)
        return pace.delay(time.monotonic())
