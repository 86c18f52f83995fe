"""Whether the data of a device that uses a model are still like those that the model was chosen for.

A device asks this of itself, and keeps the answer. What leaves it is at most one randomized bit in 92 days,
which its owner's ledger has paid for (`shoal.core.privacy.noise.response`), with the next wish (`Moved`).
"""

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Message
from shoal.core.exchange.parts import MAX_CLUSTER
from shoal.core.exchange.tensors import MAX_NAME
from shoal.core.types import ModelKey, Tensors


@dataclass(frozen=True)
class Moved:
    """A device's randomized answer to whether its data have moved.

    subject: the release, or else the run, whose model it uses. cluster: whose; "" where the device has chosen
    it by itself, since then no one else knows it. moved: as randomized.
    """

    subject: str
    cluster: ModelKey
    moved: bool

    def __post_init__(self) -> None:
        if not 1 <= len(self.subject) <= MAX_NAME or len(self.cluster) > MAX_CLUSTER:
            raise BadPayload("an answer about moved data: the name of its release or cluster is no such name")


@dataclass(frozen=True, eq=False)
class Watched(Message):
    """chance: how probable so large a difference is by chance, `shoal.core.inference.drift.chance`. fresh:
    how many new samples were compared. reference: what to compare with from now on; None: as before.

    said: 1 or 0, the randomized answer that was paid for; -1 where none was asked for, or where the owner
    does not pay: `refused` says why.
    """

    kind: ClassVar[str] = "watched"
    chance: float
    fresh: int
    said: int = -1
    refused: str = ""
    reference: Tensors | None = None


@dataclass(frozen=True, eq=False)
class Watch(Message):
    """Compare the device's data with its reference. model: of its cluster. reference: as it came in
    `Watched`; None: make one of the present data. answer: names the answer to pay for, "" for none."""

    kind: ClassVar[str] = "watch"
    reply: ClassVar[type[Message]] = Watched
    model: Tensors
    reference: Tensors | None = None
    answer: str = ""
