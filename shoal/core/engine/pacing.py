"""How often: a bucket of tokens that says, when it is empty, when to come again."""

import math
from dataclasses import dataclass

WHOLE = 1.0 - 1e-9
"""A token, less what sums of times are off by."""


@dataclass
class Pace:
    """`rate` a second, and up to `burst` at once. Times are those of a clock that only goes forward, seconds.

    Whoever comes too early is given a moment of its own, so that those who keep to theirs come `rate` a
    second and are let in; nobody is sent further away than `furthest` seconds.
    """

    rate: float
    burst: float
    furthest: float
    _tokens: float = 0.0
    _counted: float = -math.inf
    _promised: float = -math.inf

    def delay(self, now: float) -> float:
        """0 for whoever may go on now, else in how many seconds it is its turn."""
        self._tokens = min(self.burst, self._tokens + (now - self._counted) * self.rate)
        self._counted = now
        if self._tokens >= WHOLE:
            self._tokens -= 1.0
            return 0.0
        self._promised = min(max(self._promised, now) + 1.0 / self.rate, now + self.furthest)
        return self._promised - now
