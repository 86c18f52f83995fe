"""The people who call over the network: a row for each, with the only key that is valid."""

import time

from fedserver.store.database import Database, Row, record_of
from fedserver.store.identities.audit import AuditLog, Event
from fedserver.store.identities.dead_keys import DeadKeys
from fedserver.store.identities.records import Operator
from shoal.core.errors import BadPayload, NotFound
from shoal.core.identity.joining import OperatorRole


class Operators:
    """All operators that there have ever been."""

    def __init__(self, database: Database, audit: AuditLog, dead: DeadKeys) -> None:
        self._db, self._audit, self._dead = database, audit, dead

    def all(self) -> list[Operator]:
        """Every operator, sorted by name."""
        return list(map(_operator, self._db.rows("operators", "ORDER BY name")))

    def get(self, name: str) -> Operator:
        """Raises NotFound."""
        rows = self._db.rows("operators", "WHERE name = ?", (name,))
        if not rows:
            raise NotFound(f"there is no operator {name!r}", "fedserver operator ls lists them")
        return _operator(rows[0])

    def add(self, name: str, role: OperatorRole, spki: str) -> Operator:
        """Enter a key; one that the operator had before holds no more. Raises BadPayload for a dead key."""
        with self._db.transaction():
            if self._dead.of(spki) is not None:
                raise BadPayload("that key was revoked or replaced", "make a new key")
            for (former,) in self._db.query("SELECT spki FROM operators WHERE name = ?", (name,)):
                self._dead.add(former, name)
            self._db.execute("DELETE FROM operators WHERE name = ?", (name,))
            new = Operator(name, role, spki, time.time())
            self._db.insert("operators", {**vars(new), "role": role.value})
            self._audit.record(Event.OPERATOR_ADDED, name=name, role=role.value, key=spki)
            return self.get(name)

    def revoke(self, name: str, reason: str) -> Operator:
        """Revoke an operator's key. Safe to repeat. Raises NotFound."""
        with self._db.transaction():
            found = self.get(name)
            if not found.revoked:
                self._dead.add(found.spki, name)
                self._db.execute("UPDATE operators SET revoked = 1 WHERE name = ?", (name,))
                self._audit.record(Event.OPERATOR_REVOKED, name=name, reason=reason)
            return self.get(name)


def _operator(row: Row) -> Operator:
    return record_of(Operator, row, role=OperatorRole(row["role"]), revoked=bool(row["revoked"]))
