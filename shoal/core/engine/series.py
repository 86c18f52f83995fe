"""When the next run of a series starts, and what it is called: `fedserver run start NAME --every 1d`.

The runs of a series are NAME, NAME-2, NAME-3 and so on. Only the latest one counts: the next one starts when
its period is over, counted from its start. So a period that has passed while the server was away, or in which
the clock jumped, is skipped, and no two runs ever start at once.
"""

import itertools
from collections.abc import Container

from shoal.core.types import RunId


def seconds_left(every: float, by_clock: float, at_least: float) -> float:
    """Seconds until the next run starts; 0: now. every: the period.

    by_clock: seconds since the latest run was started, by the clock on the wall, which people may set back.
    at_least: seconds for which this process has known that run, by a clock that only goes forward.

    Example:
        >>> seconds_left(86400.0, 3600.0, 10.0)
        82800.0
        >>> seconds_left(60.0, -1e9, 70.0)
        0.0
    """
    return max(0.0, every - max(by_clock, at_least))


def next_name(series: RunId, taken: Container[RunId]) -> RunId:
    """The name of the next run of a series. taken: the names of all runs, also of those that were removed.

    Example:
        >>> next_name("daily", ["daily", "daily-2", "other"])
        'daily-3'
    """
    names = (f"{series}-{number}" for number in itertools.count(2))
    return next(name for name in names if name not in taken)


def number_of(run: RunId, series: RunId) -> int:
    """Which run of a series has this name; 0 if none has.

    Example:
        >>> number_of("daily", "daily"), number_of("daily-3", "daily"), number_of("daily-log", "daily")
        (1, 3, 0)
    """
    if run == series:
        return 1
    number = run.removeprefix(f"{series}-")
    return int(number) if number != run and number.isascii() and number.isdecimal() else 0
