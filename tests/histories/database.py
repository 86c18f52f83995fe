"""SQLite on a simulated machine: a process may die around every transaction, and a commit may fail.

The database itself is real. What its process had not committed is rolled back when the world closes it.
"""

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from fedserver.store.engines import Elsewhere
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


class Looked:
    """What a history's rules look at: the database, and the folder of blobs. It has what was committed."""

    elsewhere: Elsewhere | None = None
    table: Callable[[str], Any] | None = None
    """Queries the database for `fedserver.store.identities.audit.verify`, if it is not in the folder."""
    not_yet: type[Exception] = sqlite3.OperationalError
    """What a query raises while there are no tables."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._connection: sqlite3.Connection | None = None

    def version(self) -> int:
        """Another number after each commit; 0 while there are no tables."""
        path = self._state / "shoal.db"
        if self._connection is None and path.exists():
            self._connection = _connect(path, isolation_level=None)
            self._connection.row_factory = sqlite3.Row
        return self.query("PRAGMA data_version")[0][0] if self._connection is not None else 0

    @property
    def folder(self) -> Path:
        """The folder of blobs."""
        return self._state

    def query(self, query: str, *values: Any) -> list[Any]:
        """Rows, whose values have names."""
        assert self._connection is not None
        return self._connection.execute(query, values).fetchall()

    def used_by(self, disk: Disk) -> AbstractContextManager[None]:
        """Around what the server of a history does. disk: its machine's."""
        return nullcontext()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


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
