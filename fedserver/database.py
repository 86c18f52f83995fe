"""The database of a state folder: whole transactions, on the disk when they return."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedcore.errors import StorageFault
from fedserver.schema import connect


class Database:
    """For one thread. Raises StorageFault when the disk refuses."""

    def __init__(self, path: Path) -> None:
        self._database = connect(path)

    def close(self) -> None:
        self._database.close()

    def _run(self, statement: str, values: Sequence[object]) -> None:
        self._database.execute(statement, values)

    def _all(self, query: str, values: Sequence[object] = ()) -> list[sqlite3.Row]:
        cursor = self._database.cursor()
        cursor.row_factory = sqlite3.Row
        return cursor.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of it or nothing, and on the disk at the end."""
        try:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")
        except sqlite3.Error as error:
            raise StorageFault(f"shoal.db: {error}", "look at the state folder's disk") from error
