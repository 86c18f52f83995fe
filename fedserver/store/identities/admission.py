"""Admission: how a device gets its first certificate (join) and its next one (renew, rejoin).

A device joins with the proof that it knows a token's secret, renews with its current certificate, and rejoins
with the key of a certificate that has expired. Each method is one transaction, together with its line of the
audit log, on the store's only thread: if a hundred devices show the same single-use token at once, exactly
one is admitted.
"""

import json
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey as PublicKey

from fedserver.store.database import Database, Row
from fedserver.store.identities.audit import AuditLog, Event
from fedserver.store.identities.records import (
    DAY,
    Certified,
    DeviceStanding,
    Issuer,
    Registered,
    TokenStanding,
)
from fedserver.store.identities.registry import Registry, certified_of
from fedserver.store.identities.restored import RestoreGap
from fedserver.store.identities.tokens import Tokens, token_of
from shoal.core.errors import BadPayload, Refused, Revoked, ShoalError, Taken, TooOften
from shoal.core.identity.certificates import Named, certificate, pin_of
from shoal.core.identity.joining import Joining, Rejoining
from shoal.core.identity.proof import is_proved, is_signed
from shoal.core.types import DeviceId

SLEEP = 90 * DAY
"""How long after its certificate has expired a device may still rejoin with its key, in seconds."""
MOST_NEXT, WINDOW = 10, 3600.0
"""How many certificates one device may get, and in how many seconds. It normally needs one in nine days."""
DUMMY_KEY = b"\0" * 32
"""A key that no token has. Proofs for unknown tokens are checked against it, so that the time of the answer
does not reveal which tokens exist."""


class NoEntry(Refused):
    """The same answer to everything that is wrong with a token, a proof or an expired certificate.

    An answer that said which of them it was would help an attacker to guess.
    """

    def __init__(self) -> None:
        super().__init__(
            "the server does not let this device in: its join string is unknown, used up or expired",
            "ask its operator for a new one: fedserver token create",
        )


@dataclass(frozen=True)
class Admission:
    """The outcome of an attempt: the device, and its certificate if it has one; or the error that it
    receives.

    error: to be raised after the transaction, so that what was recorded in it stays.
    """

    device: Registered | None = None
    certified: Certified | None = None
    error: ShoalError | None = None


class Admissions:
    """Joining, rejoining and renewing, with the issuer's current key and roots."""

    def __init__(
        self, database: Database, audit: AuditLog, registry: Registry, tokens: Tokens, gap: RestoreGap
    ) -> None:
        self._db, self._audit = database, audit
        self._registry, self._tokens, self._gap = registry, tokens, gap

    def join(self, joining: Joining, key: PublicKey, pin: bytes, issuer: Issuer, address: str) -> Admission:
        """Admit a device that proves that it knows a token's secret.

        key: the public key in its certificate request. pin: of the server's join certificate.
        address: the network address of the caller.
        """
        with self._db.transaction():
            return self._joined(joining, key, pin, issuer, address)

    def _joined(
        self, joining: Joining, key: PublicKey, pin: bytes, issuer: Issuer, address: str
    ) -> Admission:
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
        spki = pin_of(key).hex()
        known = self._registry.find(joining.device)
        if proved and known and (known.token, known.spki) == (joining.token, spki):
            return self._again(known, key, issuer)
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
        if known:
            return refused(
                "the name is taken",
                Taken(f"a device named {joining.device!r} already exists", "join with another --device"),
            )
        if self._registry.has_key(spki):
            reason = "another device already has this key"
            return refused(reason, BadPayload(reason, "make a new key"))
        return self._admitted(joining, row, key, issuer, address)

    def _admitted(
        self, joining: Joining, row: Row, key: PublicKey, issuer: Issuer, address: str
    ) -> Admission:
        """Count a use of the token and enter the device in the registry, both or neither."""
        standing = DeviceStanding.PENDING if row["hold"] else DeviceStanding.APPROVED
        self._tokens.use_up(row["token"])
        self._registry.enter(joining.device, token_of(row), standing, pin_of(key).hex())
        found = None if row["hold"] else self._certify(joining.device, key, issuer)
        self._audit.record(
            Event.JOINED,
            device=joining.device,
            token=row["token"],
            role=row["role"],
            standing=standing.value,
            serial=found and found.serial,
            address=address,
        )
        return Admission(self._registry.find(joining.device), found)

    def _again(self, known: Registered, key: PublicKey, issuer: Issuer) -> Admission:
        """Answer a repeated request: with the same certificate, or with the first one if it was waiting
        for approval."""
        if known.standing is DeviceStanding.REVOKED:
            return Admission(known, error=_revoked(known.device))
        if known.standing is DeviceStanding.PENDING:
            return Admission(known)
        certified = self._same_key(known.device, known.spki, issuer)
        if certified is None and self._registry.is_certified(known.spki):
            return Admission(error=NoEntry())  # the device has since called with a later key
        if certified is None:
            certified = self._certify(known.device, key, issuer)
            self._audit.record(Event.CERTIFIED, device=known.device, serial=certified.serial)
        return Admission(self._registry.find(known.device), certified)

    def rejoin(
        self,
        rejoining: Rejoining,
        named: Named,
        key: PublicKey,
        pin: bytes,
        issuer: Issuer,
        address: str,
    ) -> Admission:
        """Admit a device whose certificate has expired by the key of that certificate. Raises TooOften.

        named: the names in that certificate. key: the public key in the request for the next one.
        """
        with self._db.transaction():
            shown, known = certificate(rejoining.certificate), self._registry.find(named.device)
            found = self._certified(named)
            lost = None if found else self._gap.lost(named, shown, issuer)
            reason = _refusal(rejoining, found or lost, known, pin)
            if reason or known is None:
                self._audit.record(Event.REJOIN_REFUSED, device=named.device, reason=reason, address=address)
                revoked = reason == DeviceStanding.REVOKED.value
                return Admission(error=_revoked(named.device) if revoked else NoEntry())
            if lost:
                self._gap.enter(known.device, lost)
            certified, is_new = self._next(known.device, key, issuer, named.serial)
            if is_new:
                self._audit.record(
                    Event.REJOINED, device=known.device, serial=certified.serial, address=address
                )
            return Admission(self._registry.find(known.device), certified)

    def renew(self, device: DeviceId, serial: str, key: PublicKey, issuer: Issuer) -> Admission:
        """The next certificate of a device that calls with its current one, `serial`. Raises TooOften."""
        with self._db.transaction():
            certified, is_new = self._next(device, key, issuer, serial)
            if is_new:
                self._audit.record(Event.RENEWED, device=device, serial=certified.serial)
            return Admission(self._registry.find(device), certified)

    def _next(self, device: DeviceId, key: PublicKey, issuer: Issuer, present: str) -> tuple[Certified, bool]:
        """The certificate for a new key, and whether it was just issued.

        present: the serial of the certificate that the device calls with. It stays valid until the next one
        is used, since the answer may be lost; any other certificate that was never used becomes void. Raises
        BadPayload for a key that was used before, and TooOften.
        """
        spki = pin_of(key).hex()
        if found := self._same_key(device, spki, issuer):
            if found.first_used is not None:
                raise BadPayload("that key has been used before", "make a new key for the next certificate")
            return found, False
        if self._registry.has_key(spki):
            raise BadPayload("that key has been used before", "make a new key for the next certificate")
        self._check_pace(device)
        self._db.execute(
            "UPDATE certificates SET void = 1 WHERE device = ? AND first_used IS NULL AND serial != ?",
            (device, present),
        )
        return self._certify(device, key, issuer), True

    def _check_pace(self, device: DeviceId) -> None:
        """Raises TooOften if the device has got too many certificates recently."""
        now = time.time()
        query = "SELECT issued FROM certificates WHERE device = ? AND issued > ? ORDER BY number"
        issued = [at for (at,) in self._db.query(query, (device, now - WINDOW))]
        if len(issued) >= MOST_NEXT:
            wait = max(0.0, min(issued[-MOST_NEXT] + WINDOW - now, WINDOW))
            raise TooOften(
                f"device {device} got {len(issued)} certificates within an hour",
                "use the newest of them",
                (wait, wait + WINDOW / MOST_NEXT),
            )

    def _certify(self, device: DeviceId, key: PublicKey, issuer: Issuer) -> Certified:
        made, bundle = issuer.issue(device, key), tuple(issuer.roots)
        found = Certified(
            made.serial, made.spki.hex(), made.pem, made.root, bundle, made.issued, made.expires, None
        )
        self._registry.insert(device, found)
        return found

    def _same_key(self, device: DeviceId, spki: str, issuer: Issuer) -> Certified | None:
        """The certificate that was issued for this key of the device before; it is sent with the current
        roots."""
        where, bundle = "WHERE device = ? AND spki = ? AND void = 0", json.dumps(list(issuer.roots))
        self._db.execute(f"UPDATE certificates SET bundle = ? {where}", (bundle, device, spki))  # noqa: S608
        rows = self._db.rows("certificates", where, (device, spki))
        return certified_of(rows[0]) if rows else None

    def _certified(self, named: Named) -> Certified | None:
        where = "WHERE serial = ? AND device = ? AND spki = ? AND void = 0"
        rows = self._db.rows("certificates", where, (named.serial, named.device, named.spki))
        return certified_of(rows[0]) if rows else None


def _refusal(rejoining: Rejoining, found: Certified | None, known: Registered | None, pin: bytes) -> str:
    """Why a device may not rejoin with the key of its last certificate; "" if it may."""
    if found is None or known is None:
        return "unknown or void certificate"
    key: Any = certificate(found.pem).public_key()  # taken from the certificate that our root signed
    if not is_signed(key, rejoining.nonce, pin, rejoining.csr, rejoining.signature):
        return "wrong signature"
    if known.standing is not DeviceStanding.APPROVED:
        return str(known.standing.value)
    return "its certificate expired too long ago" if time.time() > found.expires + SLEEP else ""


def _revoked(device: DeviceId) -> Revoked:
    return Revoked(f"device {device} was revoked", "ask the server's operator")
