"""The device's side of secure aggregation: from messages and memory to what `shoal.core.privacy.secure` does.

Between two exchanges a device remembers its `Member`. What it remembers counts together with its answer, so a
task that is done again finds what it found the first time, and gives the same bytes.
"""

from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from shoal.core.exchange.messages import Message, Train, Trained, fields_as
from shoal.core.exchange.parts import Letters
from shoal.core.exchange.summing import (
    SUM,
    Announce,
    Announced,
    Masked,
    Share,
    Shared,
    TrainMasked,
    Unmask,
    Unmasked,
    task_of,
)
from shoal.core.privacy.accountant import MaskedUpdate
from shoal.core.privacy.noise.bulk import draw_many
from shoal.core.privacy.secure import member as members
from shoal.core.privacy.secure.cohort import Manifest
from shoal.core.privacy.secure.fixed_point import scale_of, steps_of, to_words, variance_of, vector
from shoal.core.privacy.secure.masks import Stream
from shoal.core.privacy.secure.member import Member, is_at

if TYPE_CHECKING:  # nothing here needs PyTorch
    from shoal.core.device_kit.context import DeviceContext

NOTHING = Letters({})
Training = Callable[[Train, "DeviceContext"], Trained]


def perform(message: Message, context: "DeviceContext", train: Training) -> Message:
    """The answer to one of the four exchanges. train: as the device half trains."""
    member = Member.from_tensors(context.memory)
    match message:
        case Announce():
            return _announce(message, context)
        case Share():
            return _share(message, context, member)
        case TrainMasked():
            return _train(message, context, member, train)
        case _:
            assert isinstance(message, Unmask)
            return _unmask(message, context, member)


def _announce(message: Announce, context: "DeviceContext") -> Announced:
    announcement, member = members.announced(message.session, context.signer, context.secret)
    context.remember(member.to_tensors())
    return Announced(Letters({"": announcement}))


def _share(message: Share, context: "DeviceContext", member: Member | None) -> Shared:
    if member is None or not is_at(member, members.ANNOUNCED, message.session):
        return Shared(NOTHING, lost=True)
    manifest = Manifest(message.session, message.manifest.by_device)
    letters, commitment, after = members.shared(member, manifest, context.signer)
    context.remember(after.to_tensors())
    return Shared(Letters({**letters, "": commitment}))


def _train(message: TrainMasked, context: "DeviceContext", member: Member | None, train: Training) -> Masked:
    if member is None or not is_at(member, members.SHARED, message.session):
        return Masked(lost=True)
    trained = train(Train(**fields_as(Train, message)), context)
    devices = len(member.manifest.devices)
    moved = vector(message.model, trained.model, message.clip)
    steps = steps_of(moved, scale_of(message.clip, message.noise, devices))
    if message.noise:
        variance = variance_of(message.clip, message.noise, devices)
        steps += draw_many(variance, len(steps), Stream(member.noise))
    task, letters = task_of(message, message.clip, message.noise), message.letters.by_device
    words, after = members.masked(member, message.session, letters, to_words(steps), task)
    manifest = member.manifest
    context.summed(
        MaskedUpdate(
            cohort=manifest.digest.hex(),
            devices=devices,
            fewest=manifest.threshold,
            clip=message.clip,
            noise=message.noise,
            data=context.version(),
            masked=sha256(words.tobytes()).hexdigest(),
        )
    )
    context.remember(after.to_tensors())
    return Masked({SUM: words.view(np.int32)}, trained.descriptor)


def _unmask(message: Unmask, context: "DeviceContext", member: Member | None) -> Unmasked:
    if member is None or not is_at(member, members.MASKED, message.session):
        return Unmasked(NOTHING, lost=True)
    opening = members.unmasked(member, message.session, message.survivors.by_device)
    context.remember({})  # each question is answered once
    return Unmasked(Letters(opening))
