"""What the server does at the end: it puts secrets together, and takes the masks off the sum."""

import hmac
from collections.abc import Mapping, Sequence

import numpy as np

from shoal.core.secure.cohort import Manifest
from shoal.core.secure.masks import Words, expanded, public_of
from shoal.core.secure.member import commitment, pair_key, plus_mask
from shoal.core.secure.shamir import joined
from shoal.core.types import DeviceId


class UnrecoverableError(Exception):
    """The masks cannot be taken off. devices: those whose secrets could not be put together."""

    def __init__(self, devices: Sequence[DeviceId]) -> None:
        super().__init__(f"the secrets of {', '.join(devices)} could not be put together")
        self.devices = tuple(devices)


def total(
    manifest: Manifest,
    commitments: Mapping[DeviceId, bytes],
    numbers: Mapping[DeviceId, Words],
    shares: Mapping[DeviceId, Mapping[DeviceId, bytes]],
) -> Words:
    """The sum of the numbers of all devices in `numbers`.

    commitments: of the devices that shared. numbers: masked, of those that answered. shares: by the device
    that sent them and the device that they are of. Raises UnrecoverableError where they do not suffice.
    """
    secrets, missing = dict[DeviceId, bytes](), []
    for device in sorted(commitments):
        of_device = {manifest.place(by): given[device] for by, given in shares.items() if device in given}
        dropped = device not in numbers

        def is_right(secret: bytes, device: DeviceId = device, dropped: bool = dropped) -> bool:
            if dropped:
                return public_of(secret) == manifest.mask_key(device)
            return hmac.compare_digest(commitment(secret, manifest), commitments[device])

        found = joined(of_device, manifest.threshold, is_right)
        if found is None:
            missing.append(device)
        else:
            secrets[device] = found
    if missing:
        raise UnrecoverableError(missing)
    length = len(next(iter(numbers.values())))
    found_sum = np.zeros(length, np.uint32)
    for device in sorted(numbers):
        found_sum = found_sum + numbers[device] - expanded(secrets[device], length)
    for gone in sorted(set(commitments) - set(numbers)):
        for device in sorted(numbers):
            # What `device` has added for the one that is gone, `gone` would have taken off again.
            found_sum = plus_mask(found_sum, pair_key(secrets[gone], manifest, device, gone), gone, device)
    return found_sum
