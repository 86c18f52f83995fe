"""Limits for each of many callers: a number of events in a time, or a token bucket."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable

from shoal.core.engine.token_bucket import TokenBucket

MINUTE, HOUR = 60.0, 3600.0
MAX_KEYS = 4096
"""How many callers are remembered; the one that has been silent for longest is forgotten."""


class RateLimit:
    """At most `most` events within `seconds` for each key."""

    def __init__(self, most: int, seconds: float = MINUTE) -> None:
        self._most, self._seconds = most, seconds
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def used_up(self, key: str) -> bool:
        """Whether a key has reached its limit by now."""
        times = self._times.get(key)
        while times and times[0] <= time.monotonic() - self._seconds:
            times.popleft()
        return times is not None and len(times) >= self._most

    def count(self, key: str) -> None:
        """Count one event."""
        times = self._times.setdefault(key, deque(maxlen=self._most))
        times.append(time.monotonic())
        self._times.move_to_end(key)
        while len(self._times) > MAX_KEYS:
            self._times.popitem(last=False)

    def allow(self, key: str) -> bool:
        """Count one event if the limit allows it; return whether it did."""
        allowed = not self.used_up(key)
        if allowed:
            self.count(key)
        return allowed


class TokenBuckets:
    """A token bucket for each key. each: makes that of a new key."""

    def __init__(self, each: Callable[[], TokenBucket]) -> None:
        self._each = each
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def delay(self, key: str) -> float:
        """Seconds until it is this key's turn; 0 if it may go on now."""
        bucket = self._buckets.setdefault(key, self._each())
        self._buckets.move_to_end(key)
        while len(self._buckets) > MAX_KEYS:
            self._buckets.popitem(last=False)
        return bucket.delay(time.monotonic())
