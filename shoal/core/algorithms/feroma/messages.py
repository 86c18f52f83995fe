"""FEROMA's own message: a profile of random parts of the data."""

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Describe, Described, Message


@dataclass(frozen=True, eq=False)
class Profile(Describe):
    """Describe one part of the data by the average of the moments of `masks` random halves of it (B.4.1, S3).

    part: "train" or "held_out"; a device that holds nothing out uses its train part.
    masks: M; 0 for all samples at once.
    """

    kind: ClassVar[str] = "feroma_profile"
    part: str = "train"
    masks: int = 0

    def admit(self, reply: Message) -> None:
        """A device without a profile has no model here."""
        if not isinstance(reply, Described) or reply.descriptor is None:
            raise BadPayload("a profile was asked for", "a device with too few samples refuses the task")
