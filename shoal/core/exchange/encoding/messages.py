"""Training whose result travels in fewer bytes: `Train` and `Trained`, with what is sent of the models."""

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.errors import BadPayload
from shoal.core.exchange.encoding.updates import ENCODINGS, Decoded, shape_of
from shoal.core.exchange.messages import Message, Train, Trained, fields_as
from shoal.core.exchange.tensors import Manifest, check_finite, manifest_of
from shoal.core.types import Tensors


@dataclass(frozen=True, eq=False)
class TrainedEncoded(Trained):
    """`Trained`, with a model as `shoal.core.exchange.encoding.updates.encoded` makes it."""

    kind: ClassVar[str] = "trained_encoded"

    def opened(self, model: Tensors) -> Trained:
        """The answer to `Train` with this model."""
        return Trained(**{**fields_as(Trained, self), "model": model})


@dataclass(frozen=True, eq=False)
class TrainEncoded(Train):
    """Train only the tensors of `model`, and answer in an encoding.

    frozen: the network's other tensors, which stay as they are; None for none. They are the same in all
    rounds, so a device that keeps them fetches them once.
    """

    kind: ClassVar[str] = "train_encoded"
    reply: ClassVar[type[Message]] = TrainedEncoded
    encoding: str = "full"
    frozen: Tensors | None = None

    def __post_init__(self) -> None:
        if self.encoding not in ENCODINGS:
            raise BadPayload(
                f"there is no encoding {self.encoding!r}", "update the older of the server and the device"
            )

    @classmethod
    def of(cls, task: Train, model: Tensors, frozen: Tensors | None, encoding: str) -> "TrainEncoded":
        """The same task with a part of its model."""
        return cls(**{**fields_as(Train, task), "model": model}, encoding=encoding, frozen=frozen)

    def plain(self, model: Tensors) -> Train:
        """The task without an encoding, with the whole model."""
        return Train(**{**fields_as(Train, self), "model": model})

    @property
    def answer(self) -> Manifest:
        """What the tensors in the answer look like."""
        return shape_of(manifest_of(self.model), self.encoding)

    def decoded(self, reply: TrainedEncoded) -> Decoded:
        """The tensors of `model` after training. Raises BadPayload if they are not in this encoding."""
        return Decoded(manifest_of(self.model), reply.model, self.model, self.encoding)

    def admit(self, reply: Message) -> None:
        assert isinstance(reply, TrainedEncoded)
        check_finite(self.decoded(reply), "the encoded update")


ENCODED: tuple[type[Message], ...] = (TrainEncoded, TrainedEncoded)
