"""What the server does at the end: it puts secrets together, and takes the masks off the sum.

Each device answers for what it sent. A share that does not have the hash that its dealer gave away is a lie
of the device that returned it, as that device has compared the two before. Shares that have their hashes, and
do not give the secret that their dealer has committed itself to, are a lie of the dealer. Where a device does
not return a share of another one, because it could not read the letter, either may have lied.
"""

import hmac
from collections.abc import Collection, Mapping

from shoal.core.privacy.secure.masks import Words, expanded, public_of
from shoal.core.privacy.secure.member import (
    COMMITMENT,
    HASH,
    LETTER,
    MASK,
    OWN,
    commitment,
    hash_of,
    pair_key,
    plus_mask,
)
from shoal.core.privacy.secure.opening import Lists, named, read
from shoal.core.privacy.secure.shamir import joined
from shoal.core.types import DeviceId


class UnrecoverableError(Exception):
    """The masks cannot be taken off. liars: those that have lied for certain; none where just too few have
    answered, or where it is one of two."""

    def __init__(self, liars: Collection[DeviceId]) -> None:
        super().__init__(f"too few shares are right; {', '.join(sorted(liars)) or 'no device'} has lied")
        self.liars = frozenset(liars)


def total(
    lists: Lists,
    commitments: Mapping[DeviceId, bytes],
    letters: Mapping[DeviceId, Mapping[DeviceId, bytes]],
    masked: Words,
    openings: Mapping[DeviceId, Mapping[DeviceId, bytes]],
    task: bytes,
) -> tuple[Words, frozenset[DeviceId]]:
    """The sum of the numbers of all survivors, and who was found to have lied.

    commitments: of all senders. letters: by sender and the device that they are for. Of both the hashes
    count that are behind them. masked: the sum of what survivors sent. openings: by the device that sent
    them. task: as in `masked`. Where at least a threshold of devices answers honestly, and no dealer has lied
    in more shares than can be corrected, the sum is right, whatever the others sent.
    Raises UnrecoverableError.
    """
    manifest, survivors = lists.manifest, sorted(lists.survivors)
    opened = read(lists, openings)
    liars, disputes = {*opened.liars}, {*opened.disputes}
    secrets: dict[DeviceId, bytes] = {}
    for dealer in sorted(lists.senders):
        dropped = dealer not in lists.survivors
        right: dict[int, bytes] = {}
        for by, shares in opened.shares.items():
            if dealer not in shares:
                disputes.add(frozenset((by, dealer)))
            elif _is_dealt(lists, commitments, letters, dealer, by, shares[dealer], dropped):
                right[manifest.place(by)] = shares[dealer]
            else:
                liars.add(by)

        def is_right(secret: bytes, dealer: DeviceId = dealer, dropped: bool = dropped) -> bool:
            if dropped:
                return public_of(secret) == manifest.mask_key(dealer)
            return hmac.compare_digest(commitment(secret, manifest), commitments[dealer][:COMMITMENT])

        found = joined(right, manifest.threshold, is_right)
        if found is not None:
            secrets[dealer] = found[0]
        if len(right) >= manifest.threshold and (found is None or found[1]):
            liars.add(dealer)
    liars |= named(disputes, len(manifest.devices))
    if len(secrets) < len(lists.senders):
        raise UnrecoverableError(liars)
    for device in survivors:
        masked = masked - expanded(secrets[device], len(masked))
    for gone in sorted({*lists.senders} - {*survivors}):
        for device in survivors:
            # What `device` has added for the one that is gone, `gone` would have taken off again.
            key = pair_key(secrets[gone], manifest, device, gone, task)
            masked = plus_mask(masked, key, gone, device)
    return masked, frozenset(liars)


def _is_dealt(
    lists: Lists,
    commitments: Mapping[DeviceId, bytes],
    letters: Mapping[DeviceId, Mapping[DeviceId, bytes]],
    dealer: DeviceId,
    by: DeviceId,
    share: bytes,
    dropped: bool,
) -> bool:
    """Whether a share is as its dealer dealt it."""
    hashes = commitments[dealer][COMMITMENT:] if by == dealer else letters[dealer][by][LETTER:]
    expected = hashes[HASH:] if dropped else hashes[:HASH]
    return hash_of(share, MASK if dropped else OWN, lists.manifest, dealer, by) == expected
