"""Who takes part in a sum: announcements that devices sign, and the manifest in which all of them see all."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from shoal.core.errors import BadPayload
from shoal.core.types import DeviceId

MIN_COHORT, MAX_COHORT = 8, 128
"""Devices in a cohort. With fewer a sum tells too much of each of them; everyone sends to everyone, so there
is a limit."""
KEY = 32
"""Bytes of a key."""
KEYS = 2 * KEY
"""Bytes of an announcement before its proof: the public keys for letters and for masks."""
MAX_PROOF = 4096


class Verifier(Protocol):
    """Checks which device an announcement is from."""

    def check(self, device: DeviceId, proof: bytes, data: bytes) -> None:
        """Raise BadPayload unless this device has signed these data."""
        ...


class Signer(Verifier, Protocol):
    """Also proves that an announcement is from this device."""

    def sign(self, data: bytes) -> bytes:
        """A proof that this device has signed these data, of at most MAX_PROOF bytes."""
        ...


class Unsigned:
    """Believes names: for simulations, and for plain text on one machine, where there are no certificates."""

    def sign(self, data: bytes) -> bytes:
        return b""

    def check(self, device: DeviceId, proof: bytes, data: bytes) -> None:
        pass


def threshold(devices: int) -> int:
    """How many of these devices have to answer at the end, and how many their sum then has at least: more
    than two thirds."""
    return 2 * devices // 3 + 1


def tolerated(devices: int) -> int:
    """How many of these devices may be away or lie, all in all, so that a sum of the others is complete."""
    return devices - threshold(devices)


def colluding(devices: int) -> int:
    """How many of these devices may tell the server all that they know, and it still learns one sum. With
    more of them, two lists of survivors could each be opened by half of the honest ones."""
    return 2 * threshold(devices) - devices - 1


def smallest(devices: int, colluders: int = 0) -> int:
    """Of how many honest devices a sum is at least that any server learns. Raises ValueError where more of
    them collude with it than `colluding` says: then there is no such number."""
    if not 0 <= colluders <= colluding(devices):
        raise ValueError(f"{colluders} of {devices} devices collude")
    return threshold(devices) - colluders


def signed_part(session: str, keys: bytes) -> bytes:
    """What a device signs. The number is the version of the protocol: no sum begins where sides differ."""
    return b"shoal secure aggregation 2\n" + session.encode() + b"\n" + keys


@dataclass(frozen=True)
class Manifest:
    """A cohort as all of its devices see it. session: a name for this sum. announcements: of each device, its
    public keys and its proof."""

    session: str
    announcements: Mapping[DeviceId, bytes]

    @cached_property
    def devices(self) -> tuple[DeviceId, ...]:
        return tuple(sorted(self.announcements))

    @property
    def threshold(self) -> int:
        return threshold(len(self.announcements))

    def place(self, device: DeviceId) -> int:
        """The number of a device among them, from 1."""
        return self.devices.index(device) + 1

    def marks(self, devices: Collection[DeviceId]) -> bytes:
        """Which of its devices are among these: a byte for each."""
        return bytes(device in devices for device in self.devices)

    def seal_key(self, device: DeviceId) -> bytes:
        return self.announcements[device][:KEY]

    def mask_key(self, device: DeviceId) -> bytes:
        return self.announcements[device][KEY:KEYS]

    @cached_property
    def digest(self) -> bytes:
        """What every key of the cohort is bound to: with another manifest, other keys."""
        found = hashlib.sha256(signed_part(self.session, b""))
        for device in self.devices:
            name = device.encode()
            found.update(len(name).to_bytes(4, "big") + name + self.announcements[device][:KEYS])
        return found.digest()

    def check(self, verifier: Verifier, own: bytes) -> DeviceId:
        """Which of the devices this is. own: its public keys.

        Raises BadPayload for a cohort that is too small or too large, lacks this device, has a device twice,
        or has a device that did not sign.
        """
        if not MIN_COHORT <= len(self.announcements) <= MAX_COHORT:
            raise BadPayload(
                f"a cohort of {len(self.announcements)} devices; {MIN_COHORT} to {MAX_COHORT} are allowed",
                "wait until more devices take part, or do without secure aggregation",
            )
        if any(not device or "\n" in device for device in self.announcements):
            raise BadPayload("a device of the cohort has no name")
        found = [device for device, each in self.announcements.items() if each[:KEYS] == own]
        if len(found) != 1:
            raise BadPayload(
                "the manifest of the cohort does not have this device's keys once",
                "run one process under this device's name: each one has keys of its own",
            )
        if len({each[:KEYS] for each in self.announcements.values()}) < len(self.announcements):
            raise BadPayload("two devices of the cohort have the same keys")
        for device, each in self.announcements.items():
            check_announcement(self.session, device, each, verifier)
        return found[0]


def check_announcement(session: str, device: DeviceId, announcement: bytes, verifier: Verifier) -> None:
    """Raise BadPayload for what is no announcement, or for keys that the device did not sign."""
    if not KEYS <= len(announcement) <= KEYS + MAX_PROOF:
        raise BadPayload(f"an announcement of {len(announcement)} bytes, for secure aggregation")
    verifier.check(device, announcement[KEYS:], signed_part(session, announcement[:KEYS]))


def check_keys(announcement: bytes) -> None:
    """Raise BadPayload for public keys with which all private ones give the same. The server checks this for
    all devices, which find out when they use the key."""
    # Here, so that no process loads `cryptography` that only names the messages of secure aggregation.
    from shoal.core.privacy.secure.masks import exchanged

    for public in (announcement[:KEY], announcement[KEY:KEYS]):
        exchanged(b"\x01" * KEY, public)


def parts(devices: Sequence[DeviceId]) -> list[tuple[DeviceId, ...]]:
    """The devices of one model in cohorts as equal as possible, of at most MAX_COHORT; none if they are too
    few."""
    if len(devices) < MIN_COHORT:
        return []
    ordered, count = sorted(devices), -(-len(devices) // MAX_COHORT)
    return [tuple(ordered[number::count]) for number in range(count)]
