"""Have the devices of a cluster moved away from the data that its model was made for? From randomized
answers.

A day's answers of a cluster are compared with what chance gives where at most `TOLERATED` of its devices say
so: by how much more probable they are where a share has moved. Each day that quotient is multiplied into

    M = (1 + M before) * quotient               (Shiryaev 1963, Roberts 1966; of e-values: Shin, Ramdas,
    Rinaldo 2023)

once for each of `SHARES`, and the mean of all M decides. While nothing has moved, M less the number of days
is a martingale or falls, so that the mean number of days until M reaches a limit is at least that limit: the
limit is the days of `YEARS`, whatever the number of devices and however they come.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.core.privacy.noise.response import EVERY_DAYS, WATCHING, wrong

TOLERATED = 0.1
"""The share of devices that may say that they have moved though nothing has happened. `drift.LEVEL` is a
tenth of it, for data in which one test is more often wrong than it should be (up to 7 of 100 times on HAPT,
with seeds 38 to 42), and for devices that lie."""
YEARS = 100.0
"""Years between two false alarms of a cluster, on average, at least."""
LIMIT = YEARS * 365.0
MAX_EVIDENCE = 1000.0 * LIMIT
"""Evidence is not counted beyond this."""
SHARES = (0.15, 0.3, 0.6, 1.0)


@dataclass(frozen=True)
class Day:
    """The answers of one day. day: since 1970. moved: how many of them say, as randomized, that data have
    moved."""

    day: int
    answers: int
    moved: int


@dataclass(frozen=True)
class Movement:
    """What answers tell of a cluster. answers: how many the estimate is from. share: of the devices that have
    moved, estimated, 0 to 1. error: its standard error. since: the day since which more have than
    `TOLERATED`, as far as is known; None: no more have."""

    answers: int
    share: float
    error: float
    since: int | None = None


def movement(days: Sequence[Day]) -> Movement:
    """What these answers tell, in the order of days.

    Example:
        >>> movement([Day(1, 60, 19), Day(2, 60, 20)]).since is None
        True
        >>> found = movement([Day(1, 60, 19), Day(2, 60, 41), Day(3, 60, 40)])
        >>> found.since, round(found.share, 2)
        (2, 0.99)
    """
    quotients = [_quotients(days, share) for share in SHARES]
    evidence = list(map(_evidence, quotients))
    late = _estimate([each for each in days if each.day > days[-1].day - EVERY_DAYS])
    if sum(evidence) / len(SHARES) < LIMIT or late.share - late.error <= TOLERATED:
        return late  # the last: by now each device has said otherwise
    since = days[max(map(_start, quotients))[1]].day
    return replace(_estimate([each for each in days if each.day >= since]), since=since)


def _quotients(days: Sequence[Day], share: float) -> list[float]:
    """The logarithms of how much more probable each day's answers are where this share has moved."""
    before, after = _said(TOLERATED), _said(share)
    yes, no = math.log(after / before), math.log((1.0 - after) / (1.0 - before))
    return [each.moved * yes + (each.answers - each.moved) * no for each in days]


def _said(share: float) -> float:
    """How probable it is that a device says that it has moved, if this share of them has."""
    flipped = wrong(WATCHING)
    return flipped + (1.0 - 2.0 * flipped) * share


def _evidence(quotients: Sequence[float]) -> float:
    found = 0.0
    for each in quotients:
        found = min((1.0 + found) * math.exp(min(each, math.log(MAX_EVIDENCE))), MAX_EVIDENCE)
    return found


def _start(quotients: Sequence[float]) -> tuple[float, int]:
    """The largest sum of the last quotients, and where it begins."""
    best, found, total = -math.inf, 0, 0.0
    for number in reversed(range(len(quotients))):
        total += quotients[number]
        if total > best:
            best, found = total, number
    return best, found


def _estimate(days: Sequence[Day]) -> Movement:
    answers, moved = sum(each.answers for each in days), sum(each.moved for each in days)
    if not answers:
        return Movement(0, 0.0, 0.0)
    flipped = wrong(WATCHING)
    scale = 1.0 - 2.0 * flipped
    # With half an answer more of each kind, so that few equal answers are not taken for certain.
    smooth = (moved + 0.5) / (answers + 1.0)
    error = math.sqrt(smooth * (1.0 - smooth) / answers) / scale
    return Movement(answers, min(max((moved / answers - flipped) / scale, 0.0), 1.0), error)
