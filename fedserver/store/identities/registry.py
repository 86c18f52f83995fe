"""The registry: the keys of devices, whose they are and what they may do. It is the only truth about them."""

import json
import time
from collections.abc import Collection

from fedserver.store.database import Database, Row, record_of
from fedserver.store.identities.audit import AuditLog, Event
from fedserver.store.identities.dead_keys import DeadKeys
from fedserver.store.identities.records import DAY, DeviceStanding, Registered, Successor
from shoal.core.errors import NotFound, Refused
from shoal.core.identity.joining import Role
from shoal.core.types import DeviceId, ModelKey, RunId

ANOTHER_NAME = "its owner lets it join under another name, with a new join string"
"""What becomes of a device that was withdrawn, if it is to take part again."""


class Registry:
    """All devices that have ever been admitted."""

    def __init__(self, database: Database, audit: AuditLog, dead: DeadKeys) -> None:
        self._db, self._audit, self._dead = database, audit, dead

    def all(self) -> list[Registered]:
        """Every device that has ever been admitted, sorted by name."""
        rows = self._db.rows("identities", "ORDER BY device")
        return [self._registered(row) for row in rows]

    def get(self, device: DeviceId) -> Registered:
        """Raises NotFound."""
        if (found := self.find(device)) is None:
            raise NotFound(f"no device {device!r} has joined", "fedserver device ls lists those that have")
        return found

    def approve(self, device: DeviceId, spki: str) -> Registered:
        """Approve the key that a device waits with; one that it had before is revoked in the same moment.

        spki: of the key that was looked at; "": whichever waits. Safe to repeat. Raises NotFound, and Refused
        if it is revoked, or waits with another key.
        """
        with self._db.transaction():
            found = self.get(device)
            if spki and spki not in (found.spki, found.waiting_key):
                raise Refused(f"device {device} waits with another key meanwhile", "look at it again")
            if found.successor is not None and spki in ("", found.successor.spki):
                self._replace(found, found.successor)
            elif found.standing.ended:
                hint = "let it join again" if found.standing is DeviceStanding.REVOKED else ANOTHER_NAME
                raise Refused(f"device {device} is {found.standing.value} permanently", hint)
            elif found.standing is DeviceStanding.PENDING:
                self.set_standing(device, DeviceStanding.APPROVED)
                self._audit.record(Event.APPROVED, device=device, key=found.spki)
            return self.get(device)

    def _replace(self, found: Registered, successor: Successor) -> None:
        device, role = found.device, successor.role.value
        self._dead.add(found.spki, device)
        self._db.execute("DELETE FROM successors WHERE device = ?", (device,))
        self._db.execute(
            "UPDATE identities SET spki = ?, role = ?, labels = ?, token = ?, standing = ? WHERE device = ?",
            (
                successor.spki,
                role,
                json.dumps(successor.labels),
                successor.token,
                DeviceStanding.APPROVED.value,
                device,
            ),
        )
        self._audit.record(
            Event.APPROVED, device=device, key=successor.spki, in_place_of=found.spki, role=role
        )

    def change_key(self, device: DeviceId, spki: str) -> None:
        """Inside a transaction: a device goes on with another key, and the one that it had is revoked."""
        former = self.get(device).spki
        self._dead.add(former, device)
        self._db.execute("UPDATE identities SET spki = ? WHERE device = ?", (spki, device))
        self._audit.record(Event.KEY_CHANGED, device=device, key=spki, in_place_of=former)

    def refuse(self, device: DeviceId, reason: str) -> Registered:
        """Revoke the key that waits to take the place of a device's key. Safe to repeat. Raises NotFound."""
        with self._db.transaction():
            if (waiting := self.get(device).successor) is not None:
                self._dead.add(waiting.spki, device)
                self._db.execute("DELETE FROM successors WHERE device = ?", (device,))
                self._audit.record(Event.REVOKED, device=device, key=waiting.spki, reason=reason)
            return self.get(device)

    def revoke(self, device: DeviceId, reason: str) -> Registered:
        """Revoke a device permanently. Safe to repeat. Raises NotFound."""
        with self._db.transaction():
            found = self.get(device)
            if not found.standing.ended or found.successor is not None:
                self._end(found, DeviceStanding.REVOKED)
                self._audit.record(Event.REVOKED, device=device, reason=reason)
            return self.get(device)

    def withdraw(self, device: DeviceId, reason: str, runs: str, releases: str) -> Registered:
        """Revoke a device whose data are to count no more, and keep its name from any other. Safe to repeat.

        runs, releases: those that contain it, for the audit log. Raises NotFound.
        """
        with self._db.transaction():
            found = self.get(device)
            if found.standing is not DeviceStanding.WITHDRAWN:
                self._end(found, DeviceStanding.WITHDRAWN)
                facts = {"device": device, "reason": reason, "runs": runs, "releases": releases}
                self._audit.record(Event.WITHDRAWN, **facts)
            return self.get(device)

    def _end(self, found: Registered, standing: DeviceStanding) -> None:
        for spki in filter(None, {found.spki, found.waiting_key}):
            self._dead.add(spki, found.device)
        self._db.execute("DELETE FROM successors WHERE device = ?", (found.device,))
        if found.standing is not DeviceStanding.WITHDRAWN:
            self.set_standing(found.device, standing)

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
                placed = {"device": device, "day": _today(), "run": run, "cluster": key}
                self._db.insert("placed", placed)
            if new:
                self._audit.record(
                    Event.PLACED, device=device, run=run, clusters=", ".join(new), today=len(had) + len(new)
                )
            return True

    # -- inside ---------------------------------------------------------------------------------------------

    def device_of(self, spki: str) -> DeviceId | None:
        """The device that has this key, waits with it, or has had it."""
        for table in ("identities", "successors"):
            for row in self._db.rows(table, "WHERE spki = ?", (spki,)):
                return str(row["device"])
        return self._dead.of(spki)

    def enter(self, device: DeviceId, standing: DeviceStanding, asked: Successor) -> None:
        """Inside a transaction: add a device with this key."""
        self._db.insert("identities", {**_row_of(device, asked), "standing": standing.value})

    def await_approval(self, device: DeviceId, asked: Successor) -> None:
        """Inside a transaction: note a key that is to take the place of the one that the device has."""
        self._db.insert("successors", _row_of(device, asked))

    def find(self, device: DeviceId) -> Registered | None:
        """The device, if it has ever been admitted."""
        rows = self._db.rows("identities", "WHERE device = ?", (device,))
        return self._registered(rows[0]) if rows else None

    def _registered(self, row: Row) -> Registered:
        waiting = self._db.rows("successors", "WHERE device = ?", (row["device"],))
        return record_of(
            Registered,
            row,
            role=Role(row["role"]),
            labels=json.loads(row["labels"]),
            standing=DeviceStanding(row["standing"]),
            successor=_successor(waiting[0]) if waiting else None,
        )

    def set_standing(self, device: DeviceId, standing: DeviceStanding) -> None:
        """Inside a transaction: change whether a device may call."""
        self._db.execute("UPDATE identities SET standing = ? WHERE device = ?", (standing.value, device))


def _today() -> int:
    """The day since 1970, UTC."""
    return int(time.time() // DAY)


def _row_of(device: DeviceId, asked: Successor) -> dict[str, object]:
    stored = {"role": asked.role.value, "labels": json.dumps(asked.labels)}
    return {"device": device, **vars(asked), **stored}


def _successor(row: Row) -> Successor:
    return record_of(Successor, row, role=Role(row["role"]), labels=json.loads(row["labels"]))
