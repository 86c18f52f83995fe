"""Messages with several models in both directions, for tests."""

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Message
from shoal.core.types import Tensors


@dataclass(frozen=True, eq=False)
class Moved(Message):
    kind: ClassVar[str] = "moved"
    models: tuple[Tensors, ...]
    examples: int


@dataclass(frozen=True, eq=False)
class Move(Message):
    kind: ClassVar[str] = "move"
    reply: ClassVar[type[Message]] = Moved
    models: tuple[Tensors, ...]

    def admit(self, reply: Message) -> None:
        assert isinstance(reply, Moved)
        if len(reply.models) != len(self.models):
            raise BadPayload(f"{len(reply.models)} models came for {len(self.models)}")
