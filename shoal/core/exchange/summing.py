"""The four exchanges of secure aggregation; `shoal.core.privacy.secure` has what they mean.

A device that has no part in the sum at this point, because it has lost it or was never asked, answers all the
same, with `lost`: then the server begins again instead of waiting.
"""

import json
from dataclasses import dataclass, field, fields
from hashlib import sha256
from typing import ClassVar

from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Message, PrivateTraining, Train, TrainingSettings
from shoal.core.exchange.parts import MAX_SCALE, MIN_SCALE, Descriptor, Letters, PrivacySettings
from shoal.core.exchange.tensors import Manifest, TensorSpec, check_manifest, digest, floats_of, manifest_of
from shoal.core.privacy.secure.cohort import KEYS, check_keys
from shoal.core.types import Tensors

SUM = "sum"
LETTER, COMMITMENT, PART = 114, 64, 81
"""Bytes of a sealed letter and of a commitment, each with the hashes of two shares, and of what an opening
has for each other device."""


def task_of(train: "Train | TrainMasked", clip: float, noise: float) -> bytes:
    """The hash of what updates follow from besides data: the model, how it is trained, and how much of the
    update is sent. All devices of a sum have to be asked for the same.

    What has its default is left out, so that versions that differ in settings agree.
    """
    settings = {
        item.name: value if isinstance(value, str) else float(value)  # 1 is 1.0
        for item in fields(TrainingSettings)
        if (value := getattr(train.settings, item.name)) != item.default
    }
    bound = float(train.private.clip) if train.private is not None else None
    names = sorted(train.model)
    model = digest({name: train.model[name] for name in names})
    whole = [names, model, settings, bound, float(clip), float(noise)]
    return sha256(json.dumps(whole, sort_keys=True).encode()).digest()


@dataclass(frozen=True)
class Announced(Message):
    """Fresh public keys with a proof, under the name ""."""

    kind: ClassVar[str] = "announced"
    keys: Letters


@dataclass(frozen=True)
class Announce(Message):
    """Take part in a sum. session: its name, at most 256 characters."""

    kind: ClassVar[str] = "announce"
    reply: ClassVar[type[Message]] = Announced
    session: str

    def admit(self, reply: Message) -> None:
        assert isinstance(reply, Announced)
        found = reply.keys.by_device
        if list(found) != [""] or len(found[""]) < KEYS:
            raise BadPayload("an announcement has public keys and a proof")
        check_keys(found[""])


@dataclass(frozen=True)
class Shared(Message):
    """Sealed shares with their hashes, by the device that they are for; under the name "" a commitment."""

    kind: ClassVar[str] = "shared"
    letters: Letters
    lost: bool | None = None


@dataclass(frozen=True)
class Share(Message):
    """Share two secrets with the cohort. manifest: what each of its devices announced."""

    kind: ClassVar[str] = "share"
    reply: ClassVar[type[Message]] = Shared
    session: str
    manifest: Letters

    def admit(self, reply: Message) -> None:
        assert isinstance(reply, Shared)
        found, cohort = {**reply.letters.by_device}, self.manifest.by_device
        if reply.lost:
            return
        if len(found.pop("", b"")) != COMMITMENT or any(len(each) != LETTER for each in found.values()):
            raise BadPayload("shares have a commitment, and letters of one size")
        if not {*found} <= {*cohort} or len(found) != len(cohort) - 1:
            raise BadPayload("shares go to all other devices of the cohort, and to no other")


@dataclass(frozen=True, eq=False)
class Masked(Message):
    """The update of the trained model under masks. sum: "sum", (d,) int32, in fixed point; None if lost.

    descriptor: as in `Trained`; it is not masked.
    """

    kind: ClassVar[str] = "masked"
    sum: Tensors | None = None
    descriptor: Descriptor | None = None
    lost: bool | None = None


@dataclass(frozen=True, eq=False)
class TrainMasked(Message):
    """Train as `Train` says, and answer with the update under masks.

    clip: L2 norm to which the update is shortened. noise: standard deviation, in units of clip, of the noise
    in the sum of the fewest devices that suffice; 0 for none. letters: those for this device, by sender.
    """

    kind: ClassVar[str] = "train_masked"
    reply: ClassVar[type[Message]] = Masked
    model: Tensors
    settings: TrainingSettings
    session: str
    letters: Letters
    clip: float
    noise: float
    cluster: str = ""
    projector: Tensors | None = None
    classes: int = 0
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    private: PrivateTraining | None = None

    def __post_init__(self) -> None:
        if not MIN_SCALE <= self.clip <= MAX_SCALE or not 0.0 <= self.noise <= MAX_SCALE:
            raise BadPayload(f"a sum with clip {self.clip} and noise {self.noise} is not possible")

    @property
    def answer(self) -> Manifest:
        """What the tensors in the answer look like."""
        size = sum(spec.size for spec in floats_of(manifest_of(self.model)))
        return (TensorSpec(SUM, "int32", (size,)),)

    def admit(self, reply: Message) -> None:
        assert isinstance(reply, Masked)
        if (reply.sum is None) != bool(reply.lost):
            raise BadPayload("a masked update is there, or lost")
        if reply.sum is not None:
            check_manifest(manifest_of(reply.sum), self.answer, "a masked update")


@dataclass(frozen=True)
class Unmasked(Message):
    """Of each device of the cohort, one of its two shares, sealed: by the device that can tell the key to a
    part of them, and under the name "" the shares themselves."""

    kind: ClassVar[str] = "unmasked"
    shares: Letters
    lost: bool | None = None


@dataclass(frozen=True)
class Unmask(Message):
    """Give what takes the masks off the sum. survivors: the devices whose updates arrived, with no bytes."""

    kind: ClassVar[str] = "unmask"
    reply: ClassVar[type[Message]] = Unmasked
    session: str
    survivors: Letters

    def admit(self, reply: Message) -> None:
        assert isinstance(reply, Unmasked)
        found, survivors = {**reply.shares.by_device}, self.survivors.by_device
        if reply.lost:
            return
        if not found.pop("", b"") or any(len(each) != PART for each in found.values()):
            raise BadPayload("an opening has sealed shares, and parts of one size")
        if not {*found} <= {*survivors} or len(found) != len(survivors) - 1:
            raise BadPayload("an opening is for all other devices whose updates arrived, and for no other")


SECURE: tuple[type[Message], ...] = (
    Announce,
    Announced,
    Share,
    Shared,
    TrainMasked,
    Masked,
    Unmask,
    Unmasked,
)
