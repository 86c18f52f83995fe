"""What the server does at the end: it puts secrets together, and takes the masks off the sum."""

import hmac
from collections.abc import Collection, Mapping, Sequence

from shoal.core.privacy.secure.cohort import Manifest
from shoal.core.privacy.secure.masks import Words, expanded, public_of
from shoal.core.privacy.secure.member import commitment, pair_key, plus_mask
from shoal.core.privacy.secure.shamir import joined
from shoal.core.types import DeviceId


class UnrecoverableError(Exception):
    """The masks cannot be taken off. devices: those whose secrets could not be put together."""

    def __init__(self, devices: Sequence[DeviceId]) -> None:
        super().__init__(f"the secrets of {', '.join(devices)} could not be put together")
        self.devices = tuple(devices)


def total(
    manifest: Manifest,
    commitments: Mapping[DeviceId, bytes],
    survivors: Collection[DeviceId],
    masked: Words,
    shares: Mapping[DeviceId, Mapping[DeviceId, bytes]],
    task: bytes,
) -> Words:
    """The sum of the numbers of all survivors.

    commitments: of the devices that shared. survivors: those of them whose numbers arrived; masked: the sum
    of these. shares: by the device that sent them and the device that they are of. task: as in `masked`.
    Raises UnrecoverableError where the shares do not suffice.
    """
    secrets, missing, suspected = dict[DeviceId, bytes](), list[DeviceId](), set[int]()
    for device in sorted(commitments):
        of_device = {manifest.place(by): given[device] for by, given in shares.items() if device in given}
        dropped = device not in survivors

        def is_right(secret: bytes, device: DeviceId = device, dropped: bool = dropped) -> bool:
            if dropped:
                return public_of(secret) == manifest.mask_key(device)
            return hmac.compare_digest(commitment(secret, manifest), commitments[device])

        found = joined(of_device, manifest.threshold, is_right, suspected)
        if found is None:
            missing.append(device)
        else:
            secrets[device], wrong = found
            suspected |= wrong
    if missing:
        raise UnrecoverableError(missing)
    for device in sorted(survivors):
        masked = masked - expanded(secrets[device], len(masked))
    for gone in sorted({*commitments} - {*survivors}):
        for device in sorted(survivors):
            # What `device` has added for the one that is gone, `gone` would have taken off again.
            masked = plus_mask(masked, pair_key(secrets[gone], manifest, device, gone, task), gone, device)
    return masked
