"""What a registry that was restored from the past does not know, and what it may take up of that.

Between a backup and the loss of the disk certificates were issued and devices revoked. Whoever restores a
backup opens a gap (`fedserver restore`); accepting it as the state to go on from closes the gap (`fedserver
recover --accept`), and from then on a device may call with a certificate of the time between, though it is in
no row: one that a root of ours signed, for a device that is known and approved, newer than any that the
registry has of it. It gets its row, and a line of the audit log, when it is first shown. That lasts no longer
than such certificates do, and never holds for one issued before the gap, or after it.

A copy of the audit log that is newer than the backup says more: who was revoked, which tokens were used, and
which certificate of each device was the last. What it covers is no part of the gap any more.
"""

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fedserver.store.database import Database
from fedserver.store.identities.audit import AuditLog, Event, Head, follow
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

OPEN_GAP = """
INSERT INTO gaps (number, hash, since)
    SELECT number, json_extract(line, '$.hash'), CAST(strftime('%s', json_extract(line, '$.at')) AS REAL)
    FROM audit
    WHERE NOT EXISTS (SELECT 1 FROM gaps WHERE until IS NULL)
    ORDER BY number DESC LIMIT 1;
"""
"""A restored database knows all up to the last line of its log; one that was never accepted stays open."""
REISSUED = {each.value for each in (Event.CERTIFIED, Event.RENEWED, Event.REJOINED, Event.CERTIFICATE_FOUND)}
"""What tells of a certificate of a device that is known; the last such line is of its last certificate."""


@dataclass(frozen=True)
class Gap:
    """head: the last line before it. since: of that line, whole seconds of clock time."""

    head: Head
    since: float


@dataclass(frozen=True)
class Taken:
    """What was taken over from a copy of the audit log. lines: that were read beyond the gap's beginning.

    revoked: devices that are now. joined: devices that are in no row, and have to join anew.
    """

    lines: int = 0
    revoked: tuple[DeviceId, ...] = ()
    joined: tuple[DeviceId, ...] = ()


class RestoreGap:
    """What a restored registry lacks, and how it is filled."""

    def __init__(self, database: Database, audit: AuditLog, registry: Registry, tokens: Tokens) -> None:
        self._db, self._audit, self._registry, self._tokens = database, audit, registry, tokens

    def open(self) -> Gap | None:
        """The gap that nobody has accepted yet."""
        rows = self._db.query("SELECT * FROM gaps WHERE until IS NULL")
        return Gap(Head(rows[0]["number"], rows[0]["hash"]), rows[0]["since"]) if rows else None

    def was_accepted(self) -> bool:
        """Whether there may be certificates that are good and in no row."""
        return bool(self._db.query("SELECT 1 FROM gaps WHERE until IS NOT NULL"))

    def accept(self) -> None:
        """Go on from what is here: what was issued until now may be taken up."""
        with self._db.transaction():
            if found := self.open():
                self._db.execute("UPDATE gaps SET until = ? WHERE until IS NULL", (time.time(),))
                self._audit.record(Event.GAP_ACCEPTED, lines=found.head.number, since=found.since)

    def take_up(self, named: Named, found: x509.Certificate, issuer: Issuer) -> Registered | None:
        """Enter a certificate that is in no row, if it may be one of a gap. The device as it is then."""
        lost = self.lost(named, found, issuer)
        if lost is not None:
            with self._db.transaction():
                self.enter(named.device, lost)
        return self._registry.find(named.device)

    def lost(self, named: Named, found: x509.Certificate, issuer: Issuer) -> Certified | None:
        """The row that this certificate would have, if it may be one of a gap."""
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
        """Whether it was issued in a gap, or is the last that a log has of its device."""
        between = "SELECT 1 FROM gaps WHERE since <= ?1 AND ?1 <= until"
        last = (
            "SELECT 1 FROM reissued WHERE device = ? AND serial = ?"
            " AND NOT EXISTS (SELECT 1 FROM gaps WHERE until IS NULL)"
        )
        return bool(self._db.query(between, (issued,)) or self._db.query(last, (named.device, named.serial)))

    def enter(self, device: DeviceId, lost: Certified) -> None:
        """In a transaction. It came with roots that are not known: so its device renews at once."""
        self._registry.insert(device, lost)
        self._audit.record(Event.CERTIFICATE_FOUND, device=device, serial=lost.serial, issued=lost.issued)

    # -- a newer copy of the log -----------------------------------------------------------------------------

    def take_over(self, path: Path) -> Taken:
        """Take over what a copy of this server's audit log tells of the gap. Safe to repeat.

        Raises Refused where nothing was restored, ConfigError for a file that is not this log's continuation.
        """
        gap = self.open()
        if gap is None:
            raise Refused("no backup was restored here that is not accepted yet", "leave --audit out")
        taken = Taken()
        with self._db.transaction():
            for head, line in _beyond(path, gap.head):
                taken = self._repeat(line["event"], line["facts"], taken)
                self._db.execute(
                    "UPDATE gaps SET number = ?, hash = ?, since = strftime('%s', ?) WHERE until IS NULL",
                    (head.number, head.hash, line["at"]),
                )
            self._audit.record(Event.LOG_TAKEN_OVER, lines=taken.lines, revoked=len(taken.revoked))
        return taken

    def _repeat(self, event: str, facts: dict[str, Any], taken: Taken) -> Taken:
        """In a transaction: what one line tells of happens here too. It brings nobody in who is unknown."""
        taken = replace(taken, lines=taken.lines + 1)
        device, token = str(facts.get("device", "")), facts.get("token")
        known = self._registry.find(device)
        if event == Event.JOINED.value:
            self._db.execute("UPDATE tokens SET used = min(uses, used + 1) WHERE token = ?", (token,))
            return taken if known else replace(taken, joined=(*taken.joined, device))
        if event in (Event.TOKEN_REVOKED.value, Event.TOKEN_LOCKED.value):
            locked = event == Event.TOKEN_LOCKED.value
            self._tokens.set_standing(str(token), TokenStanding.LOCKED if locked else TokenStanding.REVOKED)
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
            self._db.execute("INSERT OR REPLACE INTO reissued VALUES (?, ?)", (device, facts.get("serial")))
        return taken


def _beyond(path: Path, since: Head) -> Iterator[tuple[Head, dict[str, Any]]]:
    """The lines of a log after `since`, with the head that each makes. A last line that was cut off is left.

    Raises ConfigError for a file that is not whole, or in which `since` is not.
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
            f"{path} does not go on from line {since.number} of the restored log",
            "give the audit.jsonl of the folder that the backup was made of",
        )
