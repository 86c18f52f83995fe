"""The people who call over the network: a row for each, with the only certificate that is valid."""

import json

from fedserver.store.database import Database, Row
from fedserver.store.identities.audit import AuditLog, Event
from fedserver.store.identities.records import Issued, Operator
from shoal.core.errors import NotFound, Revoked, Unauthenticated
from shoal.core.identity.joining import OperatorRole


class Operators:
    """All operators that have ever had a certificate."""

    def __init__(self, database: Database, audit: AuditLog) -> None:
        self._db, self._audit = database, audit

    def all(self) -> list[Operator]:
        """Every operator, sorted by name."""
        return list(map(_operator, self._db.rows("operators", "ORDER BY name")))

    def get(self, name: str) -> Operator:
        """Raises NotFound."""
        rows = self._db.rows("operators", "WHERE name = ?", (name,))
        if not rows:
            raise NotFound(f"there is no operator {name!r}", "fedserver operator ls lists them")
        return _operator(rows[0])

    def add(self, name: str, role: OperatorRole, issued: Issued, bundle: tuple[str, ...]) -> Operator:
        """Enter a certificate; one that the operator had before is void from now on.

        bundle: the roots that were sent with it.
        """
        with self._db.transaction():
            self._enter(name, role, issued, bundle)
            self._audit.record(Event.OPERATOR_ADDED, name=name, role=role.value, serial=issued.serial)
            return self.get(name)

    def renew(self, name: str, issued: Issued, bundle: tuple[str, ...]) -> Operator:
        """Enter another certificate for the key that the operator has.

        Raises NotFound, Revoked, and Unauthenticated if the operator has another key meanwhile.
        """
        with self._db.transaction():
            known = self.get(name)
            if known.revoked:
                raise Revoked(f"operator {name} was revoked", "ask who runs the server")
            if known.spki != issued.spki.hex():
                raise Unauthenticated(f"operator {name} has a newer certificate", "use that one")
            self._enter(name, known.role, issued, bundle)
            self._audit.record(Event.OPERATOR_RENEWED, name=name, serial=issued.serial)
            return self.get(name)

    def _enter(self, name: str, role: OperatorRole, issued: Issued, bundle: tuple[str, ...]) -> None:
        self._db.execute("DELETE FROM operators WHERE name = ?", (name,))
        self._db.execute(
            "INSERT INTO operators (name, role, serial, spki, root, bundle, issued, expires, revoked)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0)",
            (
                name,
                role.value,
                issued.serial,
                issued.spki.hex(),
                issued.root,
                json.dumps(bundle),
                issued.issued,
                issued.expires,
            ),
        )

    def revoke(self, name: str, reason: str) -> Operator:
        """Revoke an operator's certificate. Safe to repeat. Raises NotFound."""
        with self._db.transaction():
            self.get(name)
            self.bar(name, reason)
            return self.get(name)

    def bar(self, name: str, reason: str) -> None:
        """Inside a transaction: revoke an operator's certificate, if there is one that is not revoked."""
        if self._db.rows("operators", "WHERE name = ? AND revoked = 0", (name,)):
            self._db.execute("UPDATE operators SET revoked = 1 WHERE name = ?", (name,))
            self._audit.record(Event.OPERATOR_REVOKED, name=name, reason=reason)


def _operator(row: Row) -> Operator:
    return Operator(
        row["name"],
        OperatorRole(row["role"]),
        row["serial"],
        row["spki"],
        row["root"],
        tuple(json.loads(row["bundle"])),
        row["issued"],
        row["expires"],
        bool(row["revoked"]),
    )
