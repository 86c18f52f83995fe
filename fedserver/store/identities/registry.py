"""The registry: the admitted devices, what they may do, and the certificates that they call with."""

import json
import time
from collections.abc import Collection

from fedserver.store.database import Database, Row
from fedserver.store.identities.audit import AuditLog, Event
from fedserver.store.identities.records import DAY, Certified, DeviceStanding, Registered, Token
from shoal.core.errors import NotFound, Refused
from shoal.core.identity.joining import Role
from shoal.core.types import DeviceId, ModelKey, RunId


class Registry:
    """All devices that have ever been admitted, and their certificates."""

    def __init__(self, database: Database, audit: AuditLog) -> None:
        self._db, self._audit = database, audit

    def all(self) -> list[Registered]:
        """Every device that has ever been admitted, sorted by name."""
        rows = self._db.rows("identities", "ORDER BY device")
        return [self._registered(row) for row in rows]

    def get(self, device: DeviceId) -> Registered:
        """Raises NotFound."""
        if (found := self.find(device)) is None:
            raise NotFound(f"no device {device!r} has joined", "fedserver device ls lists those that have")
        return found

    def approve(self, device: DeviceId) -> Registered:
        """Approve a device that is waiting for it.

        Safe to repeat. Raises NotFound, Refused if it is revoked.
        """
        with self._db.transaction():
            found = self.get(device)
            if found.standing is DeviceStanding.REVOKED:
                raise Refused(f"device {device} is revoked permanently", "let it join again")
            if found.standing is DeviceStanding.PENDING:
                self.set_standing(device, DeviceStanding.APPROVED)
                self._audit.record(Event.APPROVED, device=device, key=found.spki)
            return self.get(device)

    def revoke(self, device: DeviceId, reason: str) -> Registered:
        """Revoke an identity permanently. Safe to repeat. Raises NotFound."""
        with self._db.transaction():
            if self.get(device).standing is not DeviceStanding.REVOKED:
                self.set_standing(device, DeviceStanding.REVOKED)
                self._audit.record(Event.REVOKED, device=device, reason=reason)
            return self.get(device)

    def rename(self, device: DeviceId, display: str) -> Registered:
        """Change the displayed name; the name in certificates stays. Raises NotFound."""
        with self._db.transaction():
            self.get(device)
            self._db.execute("UPDATE identities SET display = ? WHERE device = ?", (display, device))
            self._audit.record(Event.RENAMED, device=device, display=display)
            return self.get(device)

    def spend_placement(self, device: DeviceId, most: int) -> bool:
        """Count a placement of today. Returns whether the device stays within `most` a day."""
        day = _today()
        with self._db.transaction():
            self._db.execute("DELETE FROM placements WHERE day < ?", (day,))
            self._db.execute(
                "INSERT INTO placements (device, day, count) VALUES (?, ?, 1)"
                " ON CONFLICT (device, day) DO UPDATE SET count = placements.count + 1",
                (device, day),
            )
            ((count,),) = self._db.query(
                "SELECT count FROM placements WHERE device = ? AND day = ?", (device, day)
            )
            return bool(count <= most)

    def models_of_today(self, device: DeviceId, run: RunId) -> frozenset[ModelKey]:
        """The clusters of a run whose models a newcomer has had today."""
        query = "SELECT cluster FROM placed WHERE device = ? AND day = ? AND run = ?"
        return frozenset(key for (key,) in self._db.query(query, (device, _today(), run)))

    def count_models_of_today(self, device: DeviceId) -> int:
        """How many clusters' models, of all runs, a newcomer has had today."""
        query = "SELECT count(*) FROM placed WHERE device = ? AND day = ?"
        ((count,),) = self._db.query(query, (device, _today()))
        return int(count)

    def spend_models(self, device: DeviceId, run: RunId, clusters: Collection[ModelKey], most: int) -> bool:
        """Count the models of these clusters, with a line of the audit log for those that are new today.

        Returns whether the device stays within `most` of this run; 0: there is no limit. If it does not,
        nothing is counted.
        """
        with self._db.transaction():
            self._db.execute("DELETE FROM placed WHERE day < ?", (_today(),))
            had = self.models_of_today(device, run)
            new = sorted(set(clusters) - had)
            if most and len(had) + len(new) > most:
                return False
            for key in new:
                self._db.execute(
                    "INSERT INTO placed (device, day, run, cluster) VALUES (?, ?, ?, ?)",
                    (device, _today(), run, key),
                )
            if new:
                self._audit.record(
                    Event.PLACED, device=device, run=run, clusters=", ".join(new), today=len(had) + len(new)
                )
            return True

    def use_certificate(self, serial: str) -> Registered:
        """Record the first call with a certificate; the device's earlier certificates become void."""
        with self._db.transaction():
            self._db.execute(
                "UPDATE certificates SET first_used = ? WHERE serial = ? AND first_used IS NULL AND void = 0",
                (time.time(), serial),
            )
            self._db.execute(
                "UPDATE certificates SET void = 1 FROM certificates AS used WHERE used.serial = ?"
                " AND used.void = 0 AND certificates.device = used.device"
                " AND certificates.number < used.number",
                (serial,),
            )
            ((device,),) = self._db.query("SELECT device FROM certificates WHERE serial = ?", (serial,))
            return self.get(device)

    # -- inside ---------------------------------------------------------------------------------------------

    def has_key(self, spki: str) -> bool:
        """Whether any device has this key, or has had it."""
        joined = self._db.query("SELECT 1 FROM identities WHERE spki = ?", (spki,))
        return bool(joined) or self.is_certified(spki)

    def is_certified(self, spki: str) -> bool:
        """Whether a certificate was ever issued for this key."""
        return bool(self._db.query("SELECT 1 FROM certificates WHERE spki = ?", (spki,)))

    def enter(self, device: DeviceId, token: Token, standing: DeviceStanding, spki: str) -> None:
        """Inside a transaction: add a device that a token admits. spki: of its key."""
        self._db.execute(
            "INSERT INTO identities (device, display, role, labels, standing, created, spki, token)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                device,
                device,
                token.role.value,
                json.dumps(token.labels),
                standing.value,
                time.time(),
                spki,
                token.token,
            ),
        )

    def insert(self, device: DeviceId, found: Certified) -> None:
        """Inside a transaction: add a certificate of the device."""
        self._db.execute(
            "INSERT INTO certificates"
            " (number, device, serial, spki, pem, root, bundle, issued, expires, void)"
            " SELECT coalesce(max(number), 0) + 1, ?, ?, ?, ?, ?, ?, ?, ?, 0 FROM certificates",
            (
                device,
                found.serial,
                found.spki,
                found.pem,
                found.root,
                json.dumps(found.bundle),
                found.issued,
                found.expires,
            ),
        )

    def find(self, device: DeviceId) -> Registered | None:
        """The device, if it has ever been admitted."""
        rows = self._db.rows("identities", "WHERE device = ?", (device,))
        return self._registered(rows[0]) if rows else None

    def _registered(self, row: Row) -> Registered:
        certificates = self._db.rows(
            "certificates", "WHERE device = ? AND void = 0 ORDER BY number", (row["device"],)
        )
        return Registered(
            row["device"],
            row["display"],
            Role(row["role"]),
            json.loads(row["labels"]),
            DeviceStanding(row["standing"]),
            row["created"],
            row["spki"],
            row["token"],
            tuple(map(certified_of, certificates)),
        )

    def set_standing(self, device: DeviceId, standing: DeviceStanding) -> None:
        """Inside a transaction: change whether a device may call."""
        self._db.execute("UPDATE identities SET standing = ? WHERE device = ?", (standing.value, device))


def _today() -> int:
    """The day since 1970, UTC."""
    return int(time.time() // DAY)


def certified_of(row: Row) -> Certified:
    return Certified(
        row["serial"],
        row["spki"],
        row["pem"],
        row["root"],
        tuple(json.loads(row["bundle"])),
        row["issued"],
        row["expires"],
        row["first_used"],
    )
