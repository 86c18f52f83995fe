"""PACFL's messages."""

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Message


@dataclass(frozen=True, eq=False)
class Spanned(Message):
    """vectors: row after row, each of length 1: as many rows as were requested, or as the samples span."""

    kind: ClassVar[str] = "pacfl_spanned"
    vectors: tuple[float, ...]
    width: int
    examples: int


@dataclass(frozen=True, eq=False)
class Span(Message):
    """Send a basis of the subspace of the training samples. vectors: how many vectors to send, at least 1.

    by_class: that many of the samples of each class; None is no. The answer does not say of which class a
    vector is.
    """

    kind: ClassVar[str] = "pacfl_span"
    reply: ClassVar[type[Message]] = Spanned
    vectors: int
    by_class: bool | None = None

    def admit(self, reply: Message) -> None:
        assert isinstance(reply, Spanned)
        rows, rest = divmod(len(reply.vectors), max(reply.width, 1))
        if reply.width < 1 or rest or rows < 1 or (rows > self.vectors and not self.by_class):
            raise BadPayload(
                f"{len(reply.vectors)} numbers came for 1 to {self.vectors} vectors of {reply.width}"
            )
