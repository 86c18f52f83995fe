"""The restore gap: what a registry that was restored from a backup does not know, and how it recovers it.

After the backup was made and before the disk was lost, certificates may have been issued and devices revoked.
`fedserver restore` opens a gap for this time, and accepting the restored state (`fedserver recover --accept`)
closes it. From then on a device may call with a certificate from the gap although no row has it, provided
that one of our roots signed it, the device is known and approved, and the certificate is newer than all that
the registry has of the device. The registry enters it, with a line in the audit log, when it is first shown.
This ends when such certificates expire, and never applies to certificates issued before or after the gap.

A copy of the audit log that is newer than the backup provides more: which devices were revoked, which tokens
were used, and which certificate of each device was the last. The time that it covers is removed from the gap.
"""

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fedserver.store.database import Database
from fedserver.store.identities.audit import AuditLog, Event, Head, follow
from fedserver.store.identities.operators import Operators
from fedserver.store.identities.records import (
    DEVICE_BACK,
    Certified,
    DeviceStanding,
    Issuer,
    Registered,
    TokenStanding,
)
from fedserver.store.identities.registry import Registry
from fedserver.store.identities.tokens import Tokens
from shoal.core.errors import ConfigError, Refused
from shoal.core.identity.certificates import Named, pin_of
from shoal.core.types import DeviceId

REISSUED = {each.value for each in (Event.CERTIFIED, Event.RENEWED, Event.REJOINED, Event.CERTIFICATE_FOUND)}
"""The events that report another certificate of a known device; the last of them reports its last
certificate."""


def open_gap(database: Database) -> None:
    """Inside a transaction: note that a database was restored. It knows everything up to the last line of its
    audit log. If the backup itself contains a gap that was not accepted, that gap stays open and no other is
    added."""
    last = database.query("SELECT number, line FROM audit ORDER BY number DESC LIMIT 1")
    if last and not database.query("SELECT 1 FROM gaps WHERE until IS NULL"):
        ((number, text),) = last
        line = json.loads(text)
        database.execute(
            "INSERT INTO gaps (number, hash, since) VALUES (?, ?, ?)",
            (number, line["hash"], _second(line["at"])),
        )


def _second(at: str) -> float:
    """The whole second of a line's time, since 1970."""
    return float(math.floor(datetime.fromisoformat(at).timestamp()))


@dataclass(frozen=True)
class Gap:
    """A gap in the registry.

    head: the last line of the audit log before it. since: when that line was written, in whole seconds of
    clock time.
    """

    head: Head
    since: float


@dataclass(frozen=True)
class Taken:
    """What was imported from a copy of the audit log.

    lines: how many lines were read after the beginning of the gap. revoked: devices that are revoked now.
    joined: devices that joined during the gap, which the registry does not know; they have to join again.
    """

    lines: int = 0
    revoked: tuple[DeviceId, ...] = ()
    joined: tuple[DeviceId, ...] = ()


class RestoreGap:
    """The gap of a restored registry, and how it is filled."""

    def __init__(
        self, database: Database, audit: AuditLog, registry: Registry, tokens: Tokens, operators: Operators
    ) -> None:
        self._db, self._audit, self._registry, self._tokens = database, audit, registry, tokens
        self._operators = operators

    def open(self) -> Gap | None:
        """The gap that has not been accepted yet."""
        rows = self._db.rows("gaps", "WHERE until IS NULL")
        return Gap(Head(rows[0]["number"], rows[0]["hash"]), rows[0]["since"]) if rows else None

    def was_accepted(self) -> bool:
        """Whether a gap was accepted, so that there may be valid certificates that no row has."""
        return bool(self._db.query("SELECT 1 FROM gaps WHERE until IS NOT NULL"))

    def accept(self) -> None:
        """Accept the restored state: certificates issued in the gap, which ends now, may be entered when
        shown."""
        with self._db.transaction():
            if found := self.open():
                self._db.execute("UPDATE gaps SET until = ? WHERE until IS NULL", (time.time(),))
                self._audit.record(Event.GAP_ACCEPTED, lines=found.head.number, since=found.since)

    def take_up(self, named: Named, found: x509.Certificate, issuer: Issuer) -> Registered | None:
        """Enter a certificate that no row has, if it may be from a gap.

        Returns the device, if it is known.
        """
        lost = self.lost(named, found, issuer)
        if lost is not None:
            with self._db.transaction():
                self.enter(named.device, lost)
        return self._registry.find(named.device)

    def lost(self, named: Named, found: x509.Certificate, issuer: Issuer) -> Certified | None:
        """The row that this certificate would have, if it may be from a gap."""
        device = self._registry.find(named.device) if self.was_accepted() else None
        if device is None or device.standing is not DeviceStanding.APPROVED:
            return None
        if not (root := issuer.signer(found)):
            return None
        key: Any = found.public_key()
        issued, spki = found.not_valid_before_utc.timestamp() + DEVICE_BACK, pin_of(key).hex()
        rows = self._db.query("SELECT max(issued) FROM certificates WHERE device = ?", (named.device,))
        newest = max(rows[0][0] or -math.inf, math.floor(device.created) - 1.0)
        if issued <= newest or self._registry.is_certified(spki) or not self._in_gap(named, issued):
            return None
        pem, expires = found.public_bytes(Encoding.PEM), found.not_valid_after_utc.timestamp()
        return Certified(named.serial, spki, pem, root, (), issued, expires, None)

    def _in_gap(self, named: Named, issued: float) -> bool:
        """Whether a certificate was issued in a gap, or is the last one of its device in an imported log."""
        between = "SELECT 1 FROM gaps WHERE since <= ?1 AND ?1 <= until"
        last = (
            "SELECT 1 FROM reissued WHERE device = ? AND serial = ?"
            " AND NOT EXISTS (SELECT 1 FROM gaps WHERE until IS NULL)"
        )
        return bool(self._db.query(between, (issued,)) or self._db.query(last, (named.device, named.serial)))

    def enter(self, device: DeviceId, lost: Certified) -> None:
        """Inside a transaction: enter a certificate from a gap.

        Its bundle is empty, since it is not known which roots were sent with it; so its device renews at
        once.
        """
        self._registry.insert(device, lost)
        self._audit.record(Event.CERTIFICATE_FOUND, device=device, serial=lost.serial, issued=lost.issued)

    # -- a newer copy of the log -----------------------------------------------------------------------------

    def take_over(self, path: Path) -> Taken:
        """Import what a copy of this server's audit log says about the gap. Safe to repeat.

        Raises Refused if there is no open gap, ConfigError if the file does not continue the restored log.
        """
        gap = self.open()
        if gap is None:
            raise Refused("no restored backup is waiting to be accepted here", "leave out --audit")
        taken = Taken()
        with self._db.transaction():
            for head, line in _beyond(path, gap.head):
                taken = self._repeat(line["event"], line["facts"], taken)
                self._db.execute(
                    "UPDATE gaps SET number = ?, hash = ?, since = ? WHERE until IS NULL",
                    (head.number, head.hash, _second(line["at"])),
                )
            self._audit.record(Event.LOG_TAKEN_OVER, lines=taken.lines, revoked=len(taken.revoked))
        return taken

    def _repeat(self, event: str, facts: dict[str, Any], taken: Taken) -> Taken:
        """Inside a transaction: repeat what one line reports.

        This never admits a device that is not known.
        """
        taken = replace(taken, lines=taken.lines + 1)
        device, token = str(facts.get("device", "")), facts.get("token")
        known = self._registry.find(device)
        if event == Event.JOINED.value:
            self._db.execute("UPDATE tokens SET used = used + 1 WHERE token = ? AND used < uses", (token,))
            return taken if known else replace(taken, joined=(*taken.joined, device))
        if event in (Event.TOKEN_REVOKED.value, Event.TOKEN_LOCKED.value):
            locked = event == Event.TOKEN_LOCKED.value
            self._tokens.set_standing(str(token), TokenStanding.LOCKED if locked else TokenStanding.REVOKED)
        if event in (Event.OPERATOR_ADDED.value, Event.OPERATOR_REVOKED.value):
            self._operators.bar(str(facts.get("name")), "the audit log has revoked or replaced it")
        if known is None or known.standing is DeviceStanding.REVOKED:
            return taken
        if event == Event.REVOKED.value:
            self._registry.set_standing(device, DeviceStanding.REVOKED)
            self._audit.record(Event.REVOKED, device=device, reason=facts.get("reason"))
            return replace(taken, revoked=(*taken.revoked, device))
        if event == Event.APPROVED.value and known.standing is DeviceStanding.PENDING:
            self._registry.set_standing(device, DeviceStanding.APPROVED)
            self._audit.record(Event.APPROVED, device=device, key=known.spki)
        elif event == Event.RENAMED.value:
            self._db.execute(
                "UPDATE identities SET display = ? WHERE device = ?", (facts.get("display"), device)
            )
        elif event in REISSUED:
            self._db.execute(
                "INSERT INTO reissued (device, serial) VALUES (?, ?)"
                " ON CONFLICT (device) DO UPDATE SET serial = excluded.serial",
                (device, facts.get("serial")),
            )
        return taken


def _beyond(path: Path, since: Head) -> Iterator[tuple[Head, dict[str, Any]]]:
    """The lines of a log after `since`, each with its head. A last line that was cut off is skipped.

    Raises ConfigError if the file is damaged or does not contain `since`.
    """
    head, met = Head(), since == Head()
    try:
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            for text in file:
                if not text.endswith("\n"):
                    break
                head, wrong = follow(head, text.removesuffix("\n"))
                if wrong:
                    raise ConfigError(f"line {head.number + 1} of {path}: {wrong}", "use an older copy")
                if met:
                    yield head, json.loads(text)
                met = met or head == since
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "give the audit.jsonl of the lost folder") from None
    if not met:
        raise ConfigError(
            f"{path} does not continue from line {since.number} of the restored log",
            "give the audit.jsonl of the folder that was backed up",
        )
