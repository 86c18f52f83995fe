"""HACCS's messages."""

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Message


@dataclass(frozen=True, eq=False)
class Counted(Message):
    """counts: one row for each class, of 1 or of `bins` numbers: how often each occurred."""

    kind: ClassVar[str] = "haccs_counted"
    counts: tuple[float, ...]
    examples: int


@dataclass(frozen=True, eq=False)
class Count(Message):
    """Count the samples of each class in the training part.

    bins: above 0 to count instead how often an input of a sample of the class is in each of this many equal
    parts of 0 to 1; values outside count in the first or last part.
    """

    kind: ClassVar[str] = "haccs_count"
    reply: ClassVar[type[Message]] = Counted
    classes: int
    bins: int = 0

    def admit(self, reply: Message) -> None:
        assert isinstance(reply, Counted)
        expected = self.classes * max(self.bins, 1)
        if len(reply.counts) != expected or min(reply.counts) < 0.0:
            raise BadPayload(f"expected {expected} counts of at least 0, got {len(reply.counts)}")
        total = sum(reply.counts)
        whole = all(count == int(count) for count in reply.counts)
        fits = total % reply.examples == 0.0 if self.bins else total == reply.examples
        if not whole or not fits or not total:
            raise BadPayload(f"the histograms count {total:g} values, but there are {reply.examples} samples")
