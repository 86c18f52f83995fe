"""The messages of Census."""

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.exchange.messages import Message
from shoal.core.exchange.parts import Scores


@dataclass(frozen=True, eq=False)
class Seen(Message):
    """How many samples there are, as a score."""

    kind: ClassVar[str] = "census_seen"
    scores: Scores


@dataclass(frozen=True, eq=False)
class Look(Message):
    """How many samples are there?"""

    kind: ClassVar[str] = "census_look"
    reply: ClassVar[type[Message]] = Seen
