"""A cohort in one process: honest members, and a server that may be anything."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from shoal.core.errors import BadPayload
from shoal.core.privacy.secure import member as members
from shoal.core.privacy.secure.cohort import Manifest, Signer, Unsigned
from shoal.core.privacy.secure.masks import Words
from shoal.core.privacy.secure.member import Member
from shoal.core.privacy.secure.opening import Lists, opening
from shoal.core.privacy.secure.shamir import SHARE
from shoal.core.types import DeviceId

Openings = dict[DeviceId, dict[DeviceId, bytes]]
TASK = b"what all are asked for"


def opened_by_all(cohort: "Cohort", lists: Lists, devices: Collection[DeviceId] = ()) -> Openings:
    """What devices open that do not care what they are asked for. devices: which; none: all that masked."""
    found = {}
    for device in devices or cohort.words:
        own = cohort.members[device]
        given = {
            of: letter[:SHARE] if of in lists.survivors else letter[SHARE:]
            for of, letter in (own.held or {}).items()
        }
        found[device] = opening(lists, device, given, own.common or {}, own.noise)
    return found


@dataclass(frozen=True)
class Named:
    """Proves with a word that only the device knows; everyone can check it."""

    device: DeviceId

    def sign(self, data: bytes) -> bytes:
        return self.device.encode() + data[-8:]

    def check(self, device: DeviceId, proof: bytes, data: bytes) -> None:
        if proof != device.encode() + data[-8:]:
            raise BadPayload(f"{device} did not sign this")


@dataclass
class Cohort:
    """devices, in the order of the protocol. numbers: what they have. session: of the sum."""

    count: int = 9
    length: int = 50
    session: str = "sum"
    signed: bool = True
    members: dict[DeviceId, Member] = field(default_factory=dict)
    announcements: dict[DeviceId, bytes] = field(default_factory=dict)
    letters: dict[DeviceId, dict[DeviceId, bytes]] = field(default_factory=dict)
    commitments: dict[DeviceId, bytes] = field(default_factory=dict)
    words: dict[DeviceId, Words] = field(default_factory=dict)

    @property
    def devices(self) -> list[DeviceId]:
        return [f"d{number:03d}" for number in range(self.count)]

    def signer(self, device: DeviceId) -> Signer:
        return Named(device) if self.signed else Unsigned()

    def values(self, device: DeviceId) -> Words:
        chance = np.random.default_rng(self.devices.index(device))
        return chance.integers(0, 1 << 32, self.length, np.uint64).astype(np.uint32)

    def sum_of(self, devices: list[DeviceId]) -> Words:
        total = np.zeros(self.length, np.uint32)
        for device in devices:
            total = total + self.values(device)
        return total

    def announce(self) -> "Cohort":
        for device in self.devices:
            sent, self.members[device] = members.announced(self.session, self.signer(device))
            self.announcements[device] = sent
        return self

    @property
    def manifest(self) -> Manifest:
        return Manifest(self.session, self.announcements)

    def share(self, manifests: Mapping[DeviceId, Manifest] | None = None) -> "Cohort":
        for device in self.devices:
            seen = (manifests or {}).get(device, self.manifest)
            letters, commitment, after = members.shared(self.members[device], seen, self.signer(device))
            self.members[device], self.letters[device] = after, letters
            self.commitments[device] = commitment
        return self

    def letters_for(self, device: DeviceId) -> dict[DeviceId, bytes]:
        return {sender: sent[device] for sender, sent in self.letters.items() if device in sent}

    def mask(self, *away: DeviceId, tasks: Mapping[DeviceId, bytes] = {}) -> "Cohort":
        """tasks: for devices that are asked for something else than the others."""
        for device in self.devices:
            if device not in away:
                self.words[device], self.members[device] = members.masked(
                    self.members[device],
                    self.session,
                    self.letters_for(device),
                    self.values(device),
                    tasks.get(device, TASK),
                )
        return self

    @property
    def lists(self) -> Lists:
        return Lists(self.manifest, tuple(self.letters), tuple(self.words))

    def unmask(self) -> Openings:
        arrived = list(self.words)
        return {each: members.unmasked(self.members[each], self.session, arrived) for each in arrived}

    def renamed(self, session: str) -> "Cohort":
        """The same members in another session."""
        self.session = session
        self.members = {each: replace(one, session=session) for each, one in self.members.items()}
        return self
