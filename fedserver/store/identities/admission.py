"""Admission: how a device's key gets into the registry (join), and what becomes of it later (return).

A device joins with the proof that it knows a token's secret, and returns with the proof that it has its key:
for another certificate, or to change that key. Each method is one transaction, together with its line of the
audit log, on the store's only thread: if a hundred devices show the same single-use token at once, exactly
one is admitted.
"""

import json
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase

from fedserver.store.database import Database, Row
from fedserver.store.identities.audit import AuditLog, Event
from fedserver.store.identities.records import DeviceStanding, Registered, Successor, TokenStanding
from fedserver.store.identities.registry import ANOTHER_NAME, Registry
from fedserver.store.identities.tokens import Tokens
from shoal.core.errors import BadPayload, Refused, Revoked, ShoalError
from shoal.core.identity.certificates import Named
from shoal.core.identity.joining import Joining, Role
from shoal.core.identity.proof import is_proved

DUMMY_KEY = b"\0" * 32
"""A key that no token has. Proofs for unknown tokens are checked against it, so that the time of the answer
does not reveal which tokens exist."""


class NoEntry(Refused):
    """The same answer to everything that is wrong with a token, a proof or a key.

    An answer that said which of them it was would help an attacker to guess.
    """

    def __init__(self) -> None:
        super().__init__(
            "the server does not let this device in: its join string is unknown, used up or expired, or its "
            "key is not known",
            "ask its operator for a new one: fedserver token create",
        )


@dataclass(frozen=True)
class Admission:
    """The outcome of an attempt: the device as it is known now, and whether the key that was shown is its key
    (otherwise it waits); or the error that the caller receives.

    error: to be raised after the transaction, so that what was recorded in it stays.
    """

    device: Registered | None = None
    holds: bool = False
    error: ShoalError | None = None


class Admissions:
    """Joining and returning."""

    def __init__(self, database: Database, audit: AuditLog, registry: Registry, tokens: Tokens) -> None:
        self._db, self._audit, self._registry, self._tokens = database, audit, registry, tokens

    def join(self, joining: Joining, spki: str, pin: bytes, address: str) -> Admission:
        """Admit a device that proves that it knows a token's secret.

        spki: of the key in its certificate request. pin: of the server's key. address: the network address of
        the caller.
        """
        with self._db.transaction():
            return self._joined(joining, spki, pin, address)

    def _joined(self, joining: Joining, spki: str, pin: bytes, address: str) -> Admission:
        def refused(reason: str, error: ShoalError | None = None) -> Admission:
            self._audit.record(
                Event.JOIN_REFUSED, token=joining.token, device=joining.device, reason=reason, address=address
            )
            return Admission(error=error or NoEntry())

        rows = self._db.rows("tokens", "WHERE token = ?", (joining.token,))
        row = rows[0] if rows else None
        secret = row["key"] if row else DUMMY_KEY
        proved = is_proved(secret, joining.nonce, pin, joining.csr, joining.proof)
        if row is None:
            return refused("unknown token")
        if proved and (known := self._registry.find(joining.device)) and _asked(known, joining.token, spki):
            return _standing(known, spki)  # the request was repeated
        if row["standing"] != TokenStanding.OPEN.value:
            return refused(f"the token is {row['standing']}")
        if not proved:
            self._tokens.count_wrong_proof(row)
            return refused("wrong proof")
        if time.time() >= row["expires"]:
            return refused("the token has expired")
        if row["used"] >= row["uses"]:
            return refused("the token is used up")
        if not fnmatchcase(joining.device, row["pattern"]):
            problem = f"this join string is not for a device named {joining.device!r}"
            hint = f"use a name that fits {row['pattern']!r}, or ask for another join string"
            return refused("the name does not fit", Refused(problem, hint))
        holder = self._registry.device_of(spki)
        if holder == joining.device and (known := self._registry.find(holder)):
            # It asked with an earlier join string, and ended before it had the answer.
            return _standing(known, spki)
        if holder is not None:
            reason = f"the key of this request is that of device {holder}"
            return refused(reason, BadPayload(reason, f"--device {holder}, or another --state for a new key"))
        if (former := self._registry.find(joining.device)) and former.standing is DeviceStanding.WITHDRAWN:
            return refused("the device was withdrawn", withdrawn(joining.device))
        return self._admitted(joining.device, row, spki, address)

    def _admitted(self, device: str, row: Row, spki: str, address: str) -> Admission:
        """Count a use of the token and enter the key in the registry, both or neither."""
        self._tokens.use_up(row["token"])
        asked = Successor(spki, Role(row["role"]), json.loads(row["labels"]), row["token"], time.time())
        known, held = self._enter(device, asked, bool(row["hold"]))
        self._audit.record(
            Event.JOINED,
            device=device,
            key=spki,
            token=row["token"],
            role=row["role"],
            waits=not held,
            in_place_of=known and known.spki,
            address=address,
        )
        return _standing(self._registry.get(device), spki)

    def _enter(self, device: str, asked: Successor, hold: bool) -> tuple[Registered | None, bool]:
        """Enter a key under a name. Returns the device that has the name already, and whether the key holds
        without an operator's approval."""
        known = self._registry.find(device)
        if known is None:
            self._registry.enter(device, DeviceStanding.PENDING if hold else DeviceStanding.APPROVED, asked)
            return None, not hold
        if known.standing is DeviceStanding.WITHDRAWN:
            raise withdrawn(device)
        if known.successor is not None:
            raise Refused(
                f"another key waits for the name {device} already",
                "the server's operator approves it, or refuses it: fedserver device revoke NAME --waiting",
            )
        self._registry.await_approval(device, asked)
        return known, False

    def come_back(self, shown: Named, ours: bool, spki: str, address: str) -> Admission:
        """What becomes of a device that proves that it has a key.

        shown: its last certificate, whose key has signed this request. ours: whether our present key has
        issued it. spki: of the key in the request, which is that one, or one to take its place. Raises
        BadPayload for a key that was used before, and Refused.
        """
        with self._db.transaction():
            device = self._registry.device_of(shown.spki)
            if device is None:
                return self._forgotten(shown, ours, spki, address)
            known = self._registry.get(device)
            held = known.standing is DeviceStanding.APPROVED and known.spki == shown.spki
            if spki not in (known.spki, known.waiting_key) and held:
                if self._registry.device_of(spki) is not None:
                    raise BadPayload("that key has been used before", "make a new key")
                self._registry.change_key(device, spki)
                known = self._registry.get(device)
            return _standing(known, spki)

    def _forgotten(self, shown: Named, ours: bool, spki: str, address: str) -> Admission:
        """A key that no row has. If this server has certified it, and so has forgotten it, it waits."""
        roles = {role.value: role for role in Role}
        if not ours or shown.kind not in roles or spki != shown.spki:
            self._audit.record(Event.RETURN_REFUSED, device=shown.name, key=shown.spki, address=address)
            return Admission(error=NoEntry())
        known, _ = self._enter(shown.name, Successor(spki, roles[shown.kind], {}, "", time.time()), True)
        former = known and known.spki
        self._audit.record(
            Event.RETURNED, device=shown.name, key=spki, in_place_of=former, role=shown.kind, address=address
        )
        return _standing(self._registry.get(shown.name), spki)


def _asked(known: Registered, token: str, spki: str) -> bool:
    """Whether a device has asked for this key with this token before."""
    waiting = known.successor
    return (known.token, known.spki) == (token, spki) or (
        waiting is not None and (waiting.token, waiting.spki) == (token, spki)
    )


def _standing(known: Registered, spki: str) -> Admission:
    """What is answered to the owner of a key that this device has, waits with, or has had."""
    if spki == known.waiting_key:
        return Admission(known)
    if spki != known.spki or known.standing.ended:
        return Admission(known, error=revoked(known, spki != known.spki))
    return Admission(known, holds=True)


def revoked(known: Registered, replaced: bool = False) -> Revoked:
    if known.standing is DeviceStanding.WITHDRAWN:
        return Revoked(f"device {known.device} was withdrawn", ANOTHER_NAME)
    how = "has another key, which has replaced this one" if replaced else "was revoked"
    return Revoked(f"device {known.device} {how}", "ask the server's operator")


def withdrawn(device: str) -> Refused:
    return Refused(f"the name {device} is that of a device that was withdrawn", ANOTHER_NAME)
