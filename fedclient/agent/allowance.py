"""The owner's limits on what a device does for a server, and when."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from shoal.core.errors import ConfigError

DAY = 24 * 3600
ALL_DAY = "00:00-24:00"
_TIME = r"([01]?\d|2[0-3]):([0-5]\d)|24:00"


@dataclass(frozen=True)
class Hours:
    """Hours of each day, in local time. begin and end: seconds after midnight; hours that end before they
    begin go on past midnight. now: the clock that tells the local time.

        Hours.read("22:00-06:00").closed_for()  # 0.0 at midnight, 3600.0 at nine in the evening
    """

    begin: int = 0
    end: int = DAY
    now: Callable[[], datetime] = datetime.now

    @classmethod
    def read(cls, text: str) -> "Hours":
        """The hours in "22:00-06:00". Raises ConfigError."""
        begin, _, end = text.partition("-")
        if not (re.fullmatch(_TIME, begin) and re.fullmatch(_TIME, end)):
            hint = "write when they begin and when they end, such as 22:00-06:00"
            raise ConfigError(f"hours is {text!r}, which is not two times of day", hint)
        return cls(_seconds(begin), _seconds(end))

    def closed_for(self) -> float:
        """Seconds until the hours begin; 0 within them. Ask again now and then: clocks are changed."""
        at, length = self._time(), (self.end - self.begin) % DAY
        return 0.0 if not length or (at - self.begin) % DAY < length else (self.begin - at) % DAY

    def open_for(self) -> float:
        """Seconds until the hours end, where they have begun; infinite if they are the whole day."""
        return (self.end - self._time()) % DAY or DAY if (self.end - self.begin) % DAY else math.inf

    def __str__(self) -> str:
        return "-".join(f"{at // 3600:02}:{at % 3600 // 60:02}" for at in (self.begin, self.end))

    def _time(self) -> float:
        now = self.now()
        return now.hour * 3600 + now.minute * 60 + now.second + now.microsecond * 1e-6


@dataclass(frozen=True)
class Allowance:
    """The owner's limits. download_bytes: size of one model. kept_bytes: size of all stored models and
    results.

    give_up_after: seconds without a server after which the agent gives up. bandwidth: bytes a second, in both
    directions together. hours: when the agent asks for tasks; what it began then it finishes afterwards.
    """

    download_bytes: int = 2 << 30
    kept_bytes: int = 8 << 30
    give_up_after: float = float("inf")
    bandwidth: float = float("inf")
    hours: Hours = Hours()


DEFAULT = Allowance()


def _seconds(time: str) -> int:
    hour, minute = map(int, time.split(":"))
    return hour * 3600 + minute * 60
