"""What a device of a cohort does: announce, share, mask, unmask; once each, and in this order.

    announced   two fresh key pairs; their public halves are signed
    shared      a secret of its own, and the private half of its masks' key, go in sealed shares to all
                others, with a hash of each share
    masked      its numbers, plus the mask of its own secret, plus or minus a mask for each other device
    unmasked    of each device whose numbers arrived, the share of its own secret; of each other, the share of
                the key of its masks; and never both of one. All of that sealed: it can be read only if a
                threshold of devices opens for the same survivors

What a device has to keep between two tasks is a `Member`, which becomes tensors and back. With both
shares of a device from a threshold of devices, its numbers can be read. So a member answers each question
once, and then forgets what it would take to answer another.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from secrets import token_bytes

import numpy as np

from shoal.core.errors import BadPayload, DeviceFault
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.secure.cohort import KEY, KEYS, Manifest, Signer, signed_part
from shoal.core.privacy.secure.masks import (
    Stream,
    Words,
    agreed,
    derived,
    exchanged,
    expanded,
    opened,
    public_of,
    sealed,
)
from shoal.core.privacy.secure.opening import Lists, opening
from shoal.core.privacy.secure.shamir import SHARE, split
from shoal.core.types import DeviceId, Tensors

ANNOUNCED, SHARED, MASKED = 4, 5, 6
"""What a member has done last. In the first version of the protocol it was 1, 2 and 3: those have no part."""
HASH = 16
"""Bytes of the hash of a share, enough that no one finds another share with it."""
LETTER, COMMITMENT = 2 * SHARE + 16, 32
"""Bytes of a sealed letter, and of a commitment to a secret, each of which two hashes follow."""
OWN, MASK = b"own", b"mask"
"""What a share is of: the secret of a device's own mask, or the key of its masks with others."""


@dataclass(frozen=True)
class Member:
    """stage: see above. session: of the sum. seal, mask: private keys. own: the secret of its own mask.
    noise: a secret for noise and shares, so that a task that is done again draws the same.

    me, keys: from the manifest, the public keys of all devices. common: the secrets that this device has in
    common with each of them, for letters, and then for openings. senders: whose shares arrived. held: those
    that could be read.
    """

    stage: int
    session: str
    seal: bytes
    mask: bytes
    own: bytes
    noise: bytes
    me: DeviceId = ""
    keys: Mapping[DeviceId, bytes] | None = None
    common: Mapping[DeviceId, bytes] | None = None
    senders: tuple[DeviceId, ...] = ()
    held: Mapping[DeviceId, bytes] | None = None

    @property
    def manifest(self) -> Manifest:
        return Manifest(self.session, self.keys or {})

    def to_tensors(self) -> Tensors:
        """To be remembered: bytes, as arrays."""
        keys, held, common = self.keys or {}, self.held or {}, self.common or {}
        texts = {
            "session": self.session,
            "me": self.me,
            "devices": "\n".join(keys),
            "senders": "\n".join(self.senders),
            "holders": "\n".join(held),
            "others": "\n".join(common),
        }
        secrets = bytes([self.stage]) + self.seal + self.mask + self.own + self.noise
        found = {f"secure.{name}": text.encode() for name, text in texts.items()}
        found |= {"secure.secrets": secrets, "secure.keys": b"".join(keys.values())}
        found |= {"secure.held": b"".join(held.values()), "secure.common": b"".join(common.values())}
        return {name: np.frombuffer(data, np.uint8) for name, data in found.items()}

    @classmethod
    def from_tensors(cls, tensors: Tensors | None) -> "Member | None":
        """None where there is none."""
        if tensors is None or "secure.secrets" not in tensors:
            return None
        found = {name.removeprefix("secure."): array.tobytes() for name, array in tensors.items()}
        secrets, lines = found["secrets"], {k: found[k].decode() for k in ("session", "me", *LISTS)}
        devices, senders, holders, others = (tuple(filter(None, lines[name].split("\n"))) for name in LISTS)
        seal, mask, own, noise = (secrets[start : start + KEY] for start in range(1, 1 + 4 * KEY, KEY))
        return cls(
            secrets[0],
            lines["session"],
            seal,
            mask,
            own,
            noise,
            lines["me"],
            _cut(devices, found["keys"], KEYS),
            _cut(others, found["common"], KEY),
            senders,
            _cut(holders, found["held"], 2 * SHARE),
        )


LISTS = ("devices", "senders", "holders", "others")


def announced(session: str, signer: Signer, entropy: Entropy = token_bytes) -> tuple[bytes, Member]:
    """Public keys with a proof."""
    member = Member(ANNOUNCED, session, entropy(KEY), entropy(KEY), entropy(KEY), entropy(KEY))
    keys = public_of(member.seal) + public_of(member.mask)
    return keys + signer.sign(signed_part(session, keys)), member


def shared(member: Member, manifest: Manifest, signer: Signer) -> tuple[dict[DeviceId, bytes], bytes, Member]:
    """For each other device a sealed letter with its two shares, and the hashes of these behind it; and a
    commitment to this device's secret, with the hashes of the shares that it keeps.

    The shares of a manifest are always the same, since one key must not seal two letters: a server may ask
    again, and what two letters under one key differ in is no secret.

    Raises BadPayload for a manifest that this device does not accept.
    """
    _expects(member, ANNOUNCED, manifest.session)
    me = manifest.check(signer, public_of(member.seal) + public_of(member.mask))
    places = range(1, len(manifest.devices) + 1)
    entropy = Stream(derived(member.noise, manifest.digest, "shares"))
    pairs = zip(
        split(member.own, manifest.threshold, places, entropy),
        split(member.mask, manifest.threshold, places, entropy),
        strict=True,
    )
    letters = {device: own + mask for device, (own, mask) in zip(manifest.devices, pairs, strict=True)}
    common = {
        device: exchanged(member.seal, manifest.seal_key(device))
        for device in manifest.devices
        if device != me
    }
    sent = {
        device: sealed(_letter_key(secret, manifest, me, device), letters[device])
        + hashes_of(letters[device], manifest, me, device)
        for device, secret in common.items()
    }
    keys = {device: each[:KEYS] for device, each in manifest.announcements.items()}
    after = replace(member, stage=SHARED, me=me, keys=keys, common=common, held={me: letters[me]})
    return sent, commitment(member.own, manifest) + hashes_of(letters[me], manifest, me, me), after


def masked(
    member: Member, session: str, letters: Mapping[DeviceId, bytes], values: Words, task: bytes
) -> tuple[Words, Member]:
    """The device's numbers under all masks. letters: those for this device, by sender. task: a hash of what
    the numbers were computed from, besides the data. Only masks for the same task cancel: a server could
    otherwise ask all devices but one for updates that it knows, such as zeros.

    A letter that cannot be read, or does not have the shares that its hashes are of, is as none at the end,
    where each device answers for what it returns. Raises BadPayload if too few devices have sent one.
    """
    _expects(member, SHARED, session)
    manifest, me = member.manifest, member.me
    senders = tuple(sorted({*letters, me}))
    if unknown := {*letters} - {*manifest.devices} | ({me} & {*letters}):
        raise BadPayload(f"a letter from {sorted(unknown)[0]!r}, which is not another device of the cohort")
    if len(senders) < manifest.threshold:
        raise BadPayload(f"{len(senders)} devices shared, {manifest.threshold} are required")
    held, common = dict(member.held or {}), member.common or {}
    for sender, letter in letters.items():
        read = opened(_letter_key(common[sender], manifest, sender, me), letter[:LETTER])
        if read is not None and letter[LETTER:] == hashes_of(read, manifest, sender, me):
            held[sender] = read
    total = values + expanded(member.own, len(values))
    for other in senders:
        if other != me:
            total = plus_mask(total, pair_key(member.mask, manifest, other, me, task), me, other)
    nothing = bytes(KEY)  # neither its own secrets nor its numbers can be asked for again
    after = replace(member, stage=MASKED, seal=nothing, mask=nothing, own=nothing)
    later = {other: derived(secret, manifest.digest, "opening") for other, secret in common.items()}
    noise = derived(member.noise, manifest.digest, "opening")
    return total, replace(after, noise=noise, common=later, senders=senders, held=held)


def unmasked(member: Member, session: str, survivors: Collection[DeviceId]) -> dict[DeviceId, bytes]:
    """Of each device of which this one holds a letter, one of its two shares, in an opening.

    survivors: the devices whose numbers arrived. Raises BadPayload for fewer of them than the threshold, and
    for a list without this device.
    """
    _expects(member, MASKED, session)
    found, manifest = {*survivors}, member.manifest
    if not found <= {*member.senders} or member.me not in found:
        raise BadPayload("the list of the devices whose numbers arrived is not one of this cohort")
    if len(found) < manifest.threshold:
        raise BadPayload(f"a sum over {len(found)} devices, and at least {manifest.threshold} are required")
    given = {
        device: letter[:SHARE] if device in found else letter[SHARE:]
        for device, letter in (member.held or {}).items()
        if device in member.senders
    }
    lists = Lists(manifest, member.senders, tuple(sorted(found)))
    return opening(lists, member.me, given, member.common or {}, member.noise)


def is_at(member: Member | None, stage: int, session: str) -> bool:
    """Whether this is a member at this stage of this session."""
    return member is not None and (member.stage, member.session) == (stage, session)


def _expects(member: Member, stage: int, session: str) -> None:
    if not is_at(member, stage, session):
        raise DeviceFault(f"this device has no part in the sum {session!r} at this point", "begin a new sum")


def hashes_of(letter: bytes, manifest: Manifest, dealer: DeviceId, to: DeviceId) -> bytes:
    """Of the two shares of a letter, by which the server recognizes them. They tell nothing about a share,
    which is as random as a key."""
    return hash_of(letter[:SHARE], OWN, manifest, dealer, to) + hash_of(
        letter[SHARE:], MASK, manifest, dealer, to
    )


def hash_of(share: bytes, what: bytes, manifest: Manifest, dealer: DeviceId, to: DeviceId) -> bytes:
    """Of one share, OWN or MASK, that `dealer` has dealt to another device."""
    names = f"{dealer}\n{to}".encode()
    return hashlib.sha256(b"share" + manifest.digest + what + share + names).digest()[:HASH]


def commitment(own: bytes, manifest: Manifest) -> bytes:
    """By which the server recognizes the secret when it is put together; it tells nothing about it."""
    return hashlib.sha256(b"commitment" + manifest.digest + own).digest()


def pair_key(private: bytes, manifest: Manifest, other: DeviceId, me: DeviceId, task: bytes) -> bytes:
    """Of the mask that two devices have in common for a task. private: the key for masks of `me`."""
    first, second = sorted((me, other))
    purpose = f"mask\n{first}\n{second}\n{task.hex()}"
    return agreed(private, manifest.mask_key(other), manifest.digest, purpose)


def plus_mask(total: Words, key: bytes, me: DeviceId, other: DeviceId) -> Words:
    """The first of two devices by name adds their mask, the second subtracts it."""
    mask = expanded(key, len(total))
    return total + mask if me < other else total - mask


def _letter_key(common: bytes, manifest: Manifest, sender: DeviceId, to: DeviceId) -> bytes:
    return derived(common, manifest.digest, f"letter\n{sender}\n{to}")


def _cut(names: tuple[DeviceId, ...], data: bytes, size: int) -> dict[DeviceId, bytes]:
    return {name: data[at * size : (at + 1) * size] for at, name in enumerate(names)}
