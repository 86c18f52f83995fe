"""SQLite on a simulated machine: a process may die around every transaction, and a commit may fail.

The database itself is real. What its process had not committed is rolled back when the world closes it.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.histories.disk import Disk
from tests.histories.processes import current

_connect = sqlite3.connect


class Database(sqlite3.Connection):
    """A connection of the process that opened it, on its machine's disk."""

    disk: Disk
    path: Path

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        if statement == "COMMIT":
            return self._commit()
        if statement.startswith("BEGIN") and (process := current()) is not None:
            process.step("begin")
        return super().execute(statement, *values)

    def _commit(self) -> sqlite3.Cursor:
        """A commit that fails was rolled back, or, when only its last sync failed, holds all the same."""
        try:
            self.disk.before("commit", self.path, grows=True)
        except OSError as error:
            lasts = not self.disk.full and self.disk.chance.random() < 0.5
            super().execute("COMMIT" if lasts else "ROLLBACK")
            name = "SQLITE_FULL" if self.disk.full else "SQLITE_IOERR_FSYNC"
            what = "database or disk is full" if self.disk.full else "disk I/O error"
            failed = sqlite3.OperationalError(what)
            failed.sqlite_errorname, failed.sqlite_errorcode = name, getattr(sqlite3, name)
            raise failed from error
        cursor = super().execute("COMMIT")
        self.disk.after("commit", self.path)
        return cursor


def connecting(disk_of: Callable[[Any], Disk | None]) -> Callable[..., sqlite3.Connection]:
    """What `sqlite3.connect` is inside the world."""

    def connect(path: Any, *more: Any, **options: Any) -> sqlite3.Connection:
        disk, process = disk_of(path), current()
        if disk is None or process is None:
            return _connect(path, *more, **options)
        connection = _connect(path, *more, factory=Database, **options)
        connection.disk, connection.path = disk, Path(path)
        process.open.append(connection)
        return connection

    return connect
