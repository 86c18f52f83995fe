"""How often: a bucket of tokens that says, when it is empty, when to come again."""

import math
from dataclasses import dataclass


@dataclass
class Pace:
    """`rate` a second, and up to `burst` at once. Times are those of a clock that only goes forward, seconds.

    Whoever comes too early is given a moment of its own, so that those who keep to theirs come `rate` a
    second and are let in; nobody is sent further away than `furthest` seconds.
    """

    rate: float
    burst: float
    furthest: float
    _next: float = -math.inf
    _promised: float = -math.inf

    def delay(self, now: float) -> float:
        """0 for whoever may go on now, else in how many seconds it is its turn."""
        step = 1.0 / self.rate
        due = max(self._next, now - (self.burst - 1.0) * step)
        if due <= now:
            self._next = due + step
            return 0.0
        self._promised = min(max(self._promised, now) + step, now + self.furthest)
        return self._promised - now
