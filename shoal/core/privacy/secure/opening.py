"""What takes the masks off a sum, sealed so that it can be read only where a threshold of devices has opened
for the same survivors.

A server could tell some devices that others dropped out, and the rest that they did not: with shares of both
kinds it would read several sums, of fewer devices. So a device seals its shares with a fresh key, and shares
this key with the others, each part in a letter under a key that depends on the list of survivors. It has that
key in common with the device that the letter is for: which gives the key away, as a *witness*, for the list
that it was shown itself. With both, one finds the part, and a threshold of parts is the key of the shares.
That is as good as the consistency round of Bonawitz et al., in which devices sign the list and then wait for
the signatures of a threshold of the others, and takes no further exchange.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from shoal.core.privacy.secure.cohort import KEY, Manifest, tolerated
from shoal.core.privacy.secure.masks import Stream, derived, opened, sealed
from shoal.core.privacy.secure.shamir import SHARE, joined, split
from shoal.core.types import DeviceId

TAG = 16
"""Bytes by which something sealed is longer."""
MISSING = b"\xff" * SHARE
"""No share: it is above the prime."""


@dataclass(frozen=True)
class Lists:
    """senders: the devices that shared. survivors: those of them whose numbers arrived.

    Devices open for the survivors. They need not have seen the same senders: each has masked for all of the
    survivors, and no sum can be read in which one device has left out another.
    """

    manifest: Manifest
    senders: tuple[DeviceId, ...]
    survivors: tuple[DeviceId, ...]

    @cached_property
    def digest(self) -> bytes:
        marks = self.manifest.marks(self.survivors)
        return hashlib.sha256(b"opening" + self.manifest.digest + marks).digest()

    @property
    def size(self) -> int:
        """Bytes of what a device sends under the name ""."""
        return SHARE + len(self.senders) * SHARE + TAG

    def key(self, common: bytes, sealing: DeviceId, to: DeviceId) -> bytes:
        """Of the letter from one of two devices to the other, which have `common`."""
        return derived(common, self.digest, f"part\n{sealing}\n{to}")


def opening(
    lists: Lists,
    me: DeviceId,
    given: Mapping[DeviceId, bytes],
    common: Mapping[DeviceId, bytes],
    secret: bytes,
) -> dict[DeviceId, bytes]:
    """What a device sends: for each other survivor a letter to it and the witness for the letter that it
    seals, and under "" its own part and sealed shares.

    given: its shares, by the device that they are of. common: a secret with each other device. secret: of
    this device only, from which the key follows: the same list gives the same bytes.
    """
    entropy = Stream(derived(secret, lists.digest, "key"))
    key, others = entropy(KEY), [device for device in lists.survivors if device != me]
    places = [lists.manifest.place(device) for device in (me, *others)]
    own, *parts = split(key, lists.manifest.threshold, places, entropy)
    found = {"": own + sealed(key, b"".join(given.get(device, MISSING) for device in sorted(lists.senders)))}
    for device, part in zip(others, parts, strict=True):
        letter = sealed(lists.key(common[device], me, device), part)
        found[device] = letter + lists.key(common[device], device, me)
    return found


@dataclass(frozen=True)
class Opened:
    """shares: by the device that sent them, and the device that they are of. liars: who sealed something else
    than shares for certain. disputes: pairs of which one has lied."""

    shares: Mapping[DeviceId, Mapping[DeviceId, bytes]]
    liars: frozenset[DeviceId]
    disputes: frozenset[frozenset[DeviceId]]


def read(lists: Lists, openings: Mapping[DeviceId, Mapping[DeviceId, bytes]]) -> Opened:
    """What these devices have opened for the same survivors.

    A letter that its witness does not open is a dispute: one of the two has lied. The parts that were sealed
    with the right key are as the sealing device made them: if a threshold of them does not give the key, then
    that device has lied.
    """
    manifest, senders = lists.manifest, sorted(lists.senders)
    shares: dict[DeviceId, dict[DeviceId, bytes]] = {}
    liars, disputes = set[DeviceId](), set[frozenset[DeviceId]]()
    for device, sent in openings.items():
        whole = sent.get("", b"")
        parts = {manifest.place(device): whole[:SHARE]}
        for other, answer in openings.items():
            if other != device:
                letter, witness = sent.get(other, b"")[:-KEY], answer.get(device, b"")[-KEY:]
                part = opened(witness, letter) if len(witness) == KEY else None
                if part is None or len(part) != SHARE:
                    disputes.add(frozenset((device, other)))
                else:
                    parts[manifest.place(other)] = part
        if len(parts) < manifest.threshold:
            continue
        found = joined(parts, manifest.threshold, lambda key, whole=whole: _opens(key, whole) is not None)  # type: ignore[misc]
        data = _opens(found[0], whole) if found else None
        if data is None or len(whole) != lists.size:
            liars.add(device)
            continue
        cut = [data[at : at + SHARE] for at in range(0, len(data), SHARE)]
        shares[device] = {of: each for of, each in zip(senders, cut, strict=True) if each != MISSING}
    return Opened(shares, frozenset(liars), frozenset(disputes))


def named(disputes: Iterable[Collection[DeviceId]], devices: int) -> set[DeviceId]:
    """Who has lied, if not more devices have than a cohort of this many tolerates: an honest one is in
    dispute with these only. Where more would be named, more have lied, and no one can tell who."""
    counts, most = Counter(device for pair in disputes for device in pair), tolerated(devices)
    found = {device for device, count in counts.items() if count > most}
    return found if len(found) <= most else set()


def _opens(key: bytes, whole: bytes) -> bytes | None:
    return opened(key, whole[SHARE:])
