"""How long a round of training takes, by the latest ones."""

from collections import deque
from statistics import median

LATEST = 9
"""How many rounds of training count. Of these, the middle one: a few that waited for a device until the
deadline say little about the next ones."""


class Pace:
    """progress: how many rounds of training are complete. In memory: after a restart of the server, the pace
    is unknown until a round was opened and closed."""

    def __init__(self, progress: int) -> None:
        self._progress, self._since = progress, 0.0
        self._latest: deque[float] = deque(maxlen=LATEST)

    def passed(self, seconds: float, progress: int) -> None:
        """A round with a result has taken this time, and these many rounds of training are complete since.

        One that trains no model, as where devices only measure one, counts with the next one that does.
        """
        self._since += seconds
        if (more := progress - self._progress) > 0:
            self._latest.append(self._since / more)
            self._since = 0.0
        self._progress = progress

    def lost(self, progress: int) -> None:
        """A round is over that shows nothing: it has no result, or not all of its time is known."""
        self._progress, self._since = progress, 0.0

    @property
    def seconds(self) -> float | None:
        """Of a round of training; None as long as that is unknown."""
        return median(self._latest) if self._latest else None
