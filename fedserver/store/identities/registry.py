"""The registry: which devices there are, what they may do, and with which certificates they call."""

import json
import sqlite3
import time

from fedserver.authority.audit import Event
from fedserver.authority.issuing import DAY
from fedserver.authority.records import Certified, DeviceStanding, Registered
from fedserver.store.identities.tokens import Tokens
from shoal.core.errors import NotFound, Refused
from shoal.core.identity.enrolled import Role
from shoal.core.types import DeviceId, RunId


class Registry(Tokens):
    """A part of the store."""

    def identities(self) -> list[Registered]:
        """Every device that was ever admitted, by name."""
        rows = self._all("SELECT * FROM identities ORDER BY device")
        return [self._registered(row) for row in rows]

    def identity(self, device: DeviceId) -> Registered:
        """Raises NotFound."""
        if (found := self._identity(device)) is None:
            raise NotFound(f"no device {device!r} has joined", "fedserver device ls names those that have")
        return found

    def approve(self, device: DeviceId) -> Registered:
        """Let a device in that waits for it. Safe to repeat. Raises NotFound, Refused when it is revoked."""
        with self._transaction():
            found = self.identity(device)
            if found.standing is DeviceStanding.REVOKED:
                raise Refused(f"device {device} is revoked, and that is for good", "let it join anew")
            if found.standing is DeviceStanding.PENDING:
                self._stand(device, DeviceStanding.APPROVED)
                self._audit(Event.APPROVED, device=device, key=found.spki)
            return self.identity(device)

    def revoke(self, device: DeviceId, reason: str) -> Registered:
        """End an identity for good. Safe to repeat. Raises NotFound."""
        with self._transaction():
            if self.identity(device).standing is not DeviceStanding.REVOKED:
                self._stand(device, DeviceStanding.REVOKED)
                self._audit(Event.REVOKED, device=device, reason=reason)
            return self.identity(device)

    def rename(self, device: DeviceId, display: str) -> Registered:
        """What people call it; its name in certificates stays. Raises NotFound."""
        with self._transaction():
            self.identity(device)
            self._run("UPDATE identities SET display = ? WHERE device = ?", (display, device))
            self._audit(Event.RENAMED, device=device, display=display)
            return self.identity(device)

    def rounds_with(self, run: RunId, device: DeviceId) -> list[int]:
        """The rounds of a run in which an update of the device counts, of those that are still known."""
        query = "SELECT round FROM reports WHERE run = ? AND device = ? ORDER BY round"
        return [number for (number,) in self._all(query, (run, device))]

    def spend_placement(self, device: DeviceId, most: int) -> bool:
        """One more placement today, and whether there is leave for it."""
        day = int(time.time() // DAY)
        with self._transaction():
            self._run("DELETE FROM placements WHERE day < ?", (day,))
            self._run(
                "INSERT INTO placements VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET count = count + 1",
                (device, day),
            )
            ((count,),) = self._all(
                "SELECT count FROM placements WHERE device = ? AND day = ?", (device, day)
            )
            return bool(count <= most)

    def use_certificate(self, serial: str) -> Registered:
        """A certificate is called with for the first time: those before it are void from now on."""
        with self._transaction():
            self._run(
                "UPDATE certificates SET first_used = ? WHERE serial = ? AND first_used IS NULL AND NOT void",
                (time.time(), serial),
            )
            self._run(
                "UPDATE certificates SET void = 1 FROM certificates AS used WHERE used.serial = ?"
                " AND NOT used.void AND certificates.device = used.device"
                " AND certificates.number < used.number",
                (serial,),
            )
            ((device,),) = self._all("SELECT device FROM certificates WHERE serial = ?", (serial,))
            return self.identity(device)

    # -- inside ---------------------------------------------------------------------------------------------

    def _has_key(self, spki: str) -> bool:
        """Whether any device has that key, or had it."""
        joined = self._all("SELECT 1 FROM identities WHERE spki = ?", (spki,))
        return bool(joined) or self._is_certified(spki)

    def _is_certified(self, spki: str) -> bool:
        """Whether there ever was a certificate for that key."""
        return bool(self._all("SELECT 1 FROM certificates WHERE spki = ?", (spki,)))

    def _insert(self, device: DeviceId, found: Certified) -> None:
        self._run(
            "INSERT INTO certificates (device, serial, spki, pem, root, bundle, issued, expires, void)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)",
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

    def _identity(self, device: DeviceId) -> Registered | None:
        rows = self._all("SELECT * FROM identities WHERE device = ?", (device,))
        return self._registered(rows[0]) if rows else None

    def _registered(self, row: sqlite3.Row) -> Registered:
        certificates = self._all(
            "SELECT * FROM certificates WHERE device = ? AND NOT void ORDER BY number", (row["device"],)
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

    def _stand(self, device: DeviceId, standing: DeviceStanding) -> None:
        self._run("UPDATE identities SET standing = ? WHERE device = ?", (standing.value, device))


def certified_of(row: sqlite3.Row) -> Certified:
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
