"""The keys that hold no more: revoked, or replaced by another key of the same device or operator.

The table is authoritative. A file beside the state folder has the same, one key a line, so that a state
folder that is restored from an old backup does not let in again who was revoked since: at each start the
table takes what only the file has, and the file what only the table has.
"""

import logging
import os
from pathlib import Path

from fedserver.store.database import Database
from fedserver.store.identities.audit import AuditLog, Event
from fedserver.store.identities.records import DeviceStanding
from shoal.shell import disk

log = logging.getLogger("shoal.audit")

SUFFIX = ".revoked"


def beside(state: Path) -> Path:
    """The file, which is not in the state folder, so that no backup of that has it. Where the server may not
    write there, someone makes a folder of this name for it, and the file is in that."""
    state = state.absolute()
    found = state.with_name(f"{state.name}{SUFFIX}")
    return found / "keys" if found.is_dir() else found


class DeadKeys:
    """The keys, by SHA-256 in hexadecimal. trouble: why the file does not have all of them; "": it has."""

    def __init__(self, database: Database, audit: AuditLog, file: Path) -> None:
        self._db, self._audit, self._file, self.trouble = database, audit, file, ""
        with self._db.transaction():
            for spki, name in self._written().items():
                if self.of(spki) is None:
                    self._take(spki, name)
        self._complete()

    def add(self, spki: str, name: str) -> None:
        """Inside a transaction: this key of a device or operator holds no more."""
        self._db.execute(
            "INSERT INTO dead_keys (spki, name) VALUES (?, ?) ON CONFLICT DO NOTHING", (spki, name)
        )
        self._db.after_commit(self._complete)

    def of(self, spki: str) -> str | None:
        """Who had this key; None: it is not one of these."""
        rows = self._db.rows("dead_keys", "WHERE spki = ?", (spki,))
        return rows[0]["name"] if rows else None

    def _take(self, spki: str, name: str) -> None:
        """Revoke a key that was revoked when this database knew more."""
        self.add(spki, name)
        reason, revoked = "revoked before this state was restored", DeviceStanding.REVOKED.value
        if self._db.query("SELECT 1 FROM identities WHERE spki = ? AND standing <> ?", (spki, revoked)):
            self._db.execute("UPDATE identities SET standing = ? WHERE spki = ?", (revoked, spki))
            self._audit.record(Event.REVOKED, device=name, key=spki, reason=reason)
        if self._db.query("SELECT 1 FROM operators WHERE spki = ? AND revoked = 0", (spki,)):
            self._db.execute("UPDATE operators SET revoked = 1 WHERE spki = ?", (spki,))
            self._audit.record(Event.OPERATOR_REVOKED, name=name, key=spki, reason=reason)

    def _complete(self) -> None:
        """Append what only the table has. A failure is tried again at the next commit."""
        try:
            written = self._written()
            rows = self._db.rows("dead_keys", "ORDER BY spki")
            missing = [f"{row['spki']} {row['name']}\n" for row in rows if row["spki"] not in written]
            if missing:
                descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                with os.fdopen(descriptor, "ab") as file:
                    file.write("".join(missing).encode())
                    file.flush()
                    os.fsync(file.fileno())
                disk.sync_folder(self._file.parent)
            self.trouble = ""
        except OSError as error:
            self.trouble = f"{self._file}: {error.strerror}"
            log.error("%s cannot be written, so an old backup would let in who is revoked now", self._file)

    def _written(self) -> dict[str, str]:
        """The keys in the file. A line that a crash cut off is no key."""
        try:
            lines = self._file.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return {}
        except OSError as error:
            self.trouble = f"{self._file}: {error.strerror}"
            return {}
        parts = (line.split(" ", 1) for line in lines)
        return {part[0]: part[1] for part in parts if len(part) == 2 and len(part[0]) == 64}

    def notices(self) -> tuple[str, ...]:
        """For operators."""
        if not self.trouble:
            return ()
        return (
            f"revoked keys are kept in the state folder only ({self.trouble}), so an old backup would let"
            " them in again: make a folder of that name, in which this server may write",
        )
