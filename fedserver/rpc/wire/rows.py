"""The rows of what operators are shown: one that cannot be encoded costs only itself.

An operator needs a list most when something in it is wrong. So what is shown has none of the limits that
there are for what peers send, and a row that cannot be encoded all the same is shown as far as it can be.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

log = logging.getLogger("shoal.rpc")

NANOS = 1_000_000_000
MAX_SECONDS = 315_576_000_000
"""What a Duration can say, in both directions: 10,000 years."""

T = TypeVar("T")
M = TypeVar("M", bound=Message)


def shown(found: Iterable[T], encode: Callable[[T], M], bare: Callable[[T, str], M]) -> Iterator[M]:
    """Each row as `encode` makes it; one that cannot be encoded, as `bare` makes it of the row and of why."""
    for each in found:
        try:
            yield encode(each)
        except Exception as error:
            log.error("an operator cannot be shown all of %r", each, exc_info=error)
            yield bare(each, f"it cannot be shown: {error}")


def span_to_pb(seconds: float | None) -> Duration | None:
    """A time of any length, also below 0, to the nanosecond; None for what is no number."""
    if seconds is None or math.isnan(seconds):
        return None
    limited = min(max(seconds, -MAX_SECONDS), MAX_SECONDS)
    whole, nanos = divmod(round(abs(limited) * NANOS), NANOS)
    sign = -1 if limited < 0.0 else 1
    return Duration(seconds=sign * whole, nanos=sign * nanos)


def span_from_pb(duration: Duration) -> float:
    return (duration.seconds * NANOS + duration.nanos) / NANOS
