"""The database of a state folder: whole transactions, on the disk when they return."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedserver.store.schema import connect
from shoal.core.errors import DiskFull, StorageFault


class Database:
    """For one thread. Raises StorageFault when the disk refuses."""

    def __init__(self, path: Path) -> None:
        self._database = connect(path)

    def close(self) -> None:
        self._database.close()

    def _run(self, statement: str, values: Sequence[object]) -> None:
        self._database.execute(statement, values)

    def _all(self, query: str, values: Sequence[object] = ()) -> list[sqlite3.Row]:
        with _faults():
            cursor = self._database.cursor()
            cursor.row_factory = sqlite3.Row
            return cursor.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of it or nothing, and on the disk at the end."""
        with _faults():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:  # a full disk can have ended it already
                    self._database.execute("ROLLBACK")
                raise


@contextmanager
def _faults() -> Iterator[None]:
    """Around work on the database: what SQLite raises becomes a StorageFault, a full disk a DiskFull."""
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            raise DiskFull(f"shoal.db: {error}", "free some space on the disk of the state folder") from error
        raise StorageFault(f"shoal.db: {error}", "check the disk of the state folder") from error
