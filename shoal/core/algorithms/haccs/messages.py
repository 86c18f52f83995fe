"""What HACCS says beyond the standard messages."""

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Message


@dataclass(frozen=True, eq=False)
class Counted(Message):
    """counts: one row for each class, of 1 or of `bins` numbers; how often each was met."""

    kind: ClassVar[str] = "haccs_counted"
    counts: tuple[float, ...]
    examples: int


@dataclass(frozen=True, eq=False)
class Count(Message):
    """How many samples of the training part are of each class.

    bins: above 0, instead how often an input of a sample of the class is in each of so many equal parts of 0
    to 1; what lies outside counts at the end.
    """

    kind: ClassVar[str] = "haccs_count"
    reply: ClassVar[type[Message]] = Counted
    classes: int
    bins: int = 0

    def admit(self, reply: Message) -> None:
        assert isinstance(reply, Counted)
        due = self.classes * max(self.bins, 1)
        if len(reply.counts) != due or min(reply.counts) < 0.0:
            raise BadPayload(f"{due} counts are due, none below 0; {len(reply.counts)} came")
