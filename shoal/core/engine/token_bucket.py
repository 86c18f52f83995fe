"""A token bucket that says, when it is empty, when to come again."""

import math
from dataclasses import dataclass

WHOLE_TOKEN = 1.0 - 1e-9
"""One token, less the rounding error of sums of times."""


@dataclass
class TokenBucket:
    """A limit of `rate` per second with bursts of up to `burst`. Times are seconds on a monotonic clock.

    A caller that comes too early is given a time of its own to come back, so that callers that keep to theirs
    arrive at `rate` per second and are let in. No caller is sent away for more than `furthest` seconds.
    """

    rate: float
    burst: float
    furthest: float
    _tokens: float = 0.0
    _counted: float = -math.inf
    _promised: float = -math.inf

    def delay(self, now: float) -> float:
        """0.0 if the caller may go on now, else the seconds after which it should come back."""
        self._tokens = min(self.burst, self._tokens + (now - self._counted) * self.rate)
        self._counted = now
        if self._tokens >= WHOLE_TOKEN:
            self._tokens -= 1.0
            return 0.0
        self._promised = min(max(self._promised, now) + 1.0 / self.rate, now + self.furthest)
        return self._promised - now
