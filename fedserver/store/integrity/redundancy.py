"""Every row of the database a second time, with a checksum: what a disk may do to a row is found and undone.

`shoal.db` is the truth. Beside each row it has a checksum (`checksums`). `shoal.db.copy` has the bytes of
each row again, with the same checksum (`copies`). Triggers keep both up to date, so that no statement can
forget it; they exist only in the connection, which knows the functions that they call.

The copy is written after each commit and is not synced, so it costs no time on the disk: after a power
failure it may lag behind, which the numbers in `commits` and `copied` show, and it is brought up to date. If
it is ahead, then it is the database that has lost its last transactions, because a damaged write-ahead log
ends where the damage begins.

A row whose bytes do not match its checksum is replaced by its copy, a database whose pages contradict each
other or that cannot be opened is made again of all copies, and a damaged copy is made again of the database.
"""

import logging
import sqlite3
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedserver.store.disk_space import is_full
from fedserver.store.integrity.row_bytes import Place, Value, checksum, packed, text, unpacked
from fedserver.store.integrity.salvage import (
    columns_of,
    copy_of,
    insert,
    listed,
    remove,
    tables,
    transaction,
    whole,
)
from shoal.core.errors import StorageFault

log = logging.getLogger("shoal.server")

TABLES = """
CREATE TABLE IF NOT EXISTS copies (
    tbl TEXT NOT NULL, row INTEGER NOT NULL, sum BLOB NOT NULL, data BLOB NOT NULL, PRIMARY KEY (tbl, row)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS copied (number INTEGER NOT NULL);
INSERT INTO copied SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM copied);
"""
DAMAGED = "damaged row"


class DamagedRow(StorageFault):
    """A row whose bytes do not match its checksum was about to be used. `place` says which."""

    def __init__(self, place: Place, hint: str = "") -> None:
        super().__init__(f"row {place[1]} of table {place[0]} is damaged", hint)
        self.place = place


class Redundancy:
    """Keeps checksums and copies of all rows of `connection`, which is open on the file `path`.

    For one thread. expendable: the tables on which no run depends. stale: whether the copy could not be
    written, for example because the disk is full. refused: the damaged row that a statement was about to
    change, which is an error of SQLite then.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path, expendable: Container[str]) -> None:
        self._main, self._path, self._expendable = connection, copy_of(path), expendable
        self._pending: dict[Place, tuple[bytes, bytes] | None] = {}
        self._repairing = self.stale = False
        self.refused: Place | None = None
        self._columns: dict[str, list[str]] = {}
        connection.execute("PRAGMA temp_store=MEMORY")
        connection.execute("PRAGMA recursive_triggers=ON")  # so that INSERT OR REPLACE deletes visibly
        connection.text_factory = text
        connection.create_function("noted", -1, self._noted)
        connection.create_function("forgotten", 2, self._forgotten)
        connection.create_function("sound", -1, self._sound)
        connection.create_function("repairing", 0, lambda: self._repairing)
        for table in tables(connection):
            self._columns[table] = columns = columns_of(connection, table)
            for statement in _triggers(table, columns):
                connection.execute(statement)
        self._copy = self._opened()

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._copy.close()

    # -- every transaction --------------------------------------------------------------------------------

    def committing(self) -> None:
        """Inside a transaction, at its end: give it a number."""
        self._main.execute("UPDATE commits SET number = number + 1")

    def committed(self) -> None:
        """After a commit: copy the rows that it changed. If that fails, the copy is made again later."""
        changes, self._pending = self._pending, {}
        if self.stale:
            return
        try:
            ((number,),) = self._main.execute("SELECT number FROM commits").fetchall()
            self._copy.execute("BEGIN IMMEDIATE")
            for place, found in changes.items():
                if found is None:
                    self._copy.execute("DELETE FROM copies WHERE tbl = ? AND row = ?", place)
                else:
                    self._copy.execute("INSERT OR REPLACE INTO copies VALUES (?, ?, ?, ?)", (*place, *found))
            self._copy.execute("UPDATE copied SET number = ?", (number,))
            self._copy.execute("COMMIT")
        except sqlite3.Error as error:
            log.warning("%s cannot be written and is behind the database: %s", self._path.name, error)
            self.stale = True
            with suppress(sqlite3.Error):
                self._copy.execute("ROLLBACK")

    def rolled_back(self) -> None:
        self._pending = {}

    # -- finding and repairing ------------------------------------------------------------------------------

    def check(self, table: str, row: int, found: bytes | None, values: Iterable[Value]) -> bool:
        """Whether the values of a row match its checksum."""
        return found == checksum((table, row), packed(values))

    def repair(self, place: Place) -> str:
        """Make a damaged row what it was. Returns what was done; raises DamagedRow if no one knows.

        A row of which no one knows is removed if no run depends on it: it must not keep the server from
        working, nor hide the others. Inside a transaction or outside of one.
        """
        table, row = place
        present, stored = self._row(place), self._stored(place)
        copied = self._copied(place)
        if present is not None and stored == checksum(place, present):
            # The row is sound: its values came from an index, which has another key than the table.
            self._main.execute(f"REINDEX {table}")
            return f"an index of table {table} was damaged, and was made again"
        if copied is not None and present == copied:
            self._set_checksum(place, checksum(place, copied))
            return f"the checksum of row {row} of table {table} was damaged, and was computed again"
        if copied is not None:
            with self._allowed():
                try:
                    self._write(place, unpacked(copied), new=present is None)
                except sqlite3.DatabaseError:  # an index has another key of this row than the table
                    self._main.execute(f"REINDEX {table}")
                    self._write(place, unpacked(copied), new=self._row(place) is None)
            certain = stored == checksum(place, copied)
            return f"row {row} of table {table} was damaged, and was restored from its copy" + (
                "" if certain else ", which may be older"
            )
        if present is None or stored is None:
            # A checksum without a row, or a row without one, and no copy: a place that never was.
            self._main.execute("DELETE FROM checksums WHERE tbl = ? AND row = ?", place)
            if present is not None:
                self._remove(place)
            return f"row {row} of table {table} never existed, and was removed"
        if table in self._expendable:
            self._remove(place)
            return f"row {row} of table {table} was damaged, and its copy, too: it is lost, and was removed"
        raise DamagedRow(place, "its copy is damaged, too: restore a backup")

    def adopt(self) -> None:
        """Take all rows as they are, and make their checksums and copies: in a new database."""
        with transaction(self._main):
            self._main.execute("DELETE FROM checksums")
            self._main.execute("INSERT INTO commits VALUES (0)")
            for table, columns in self._columns.items():
                args = ", ".join((f"'{table}'", "rowid", *columns))
                self._main.execute(
                    f"INSERT INTO checksums SELECT '{table}', rowid, noted({args}) FROM {table}"  # noqa: S608
                )
            self.committing()

    def refresh(self) -> None:
        """Make the copy again of all rows that match their checksums; others keep the copy that they have."""
        self.stale, self._pending = False, {}
        there = self._copy.execute("SELECT tbl, row, sum FROM copies")
        copies = {(table, row): digest for table, row, digest in there}
        for table, row, digest in self._main.execute("SELECT tbl, row, sum FROM checksums").fetchall():
            place = (table, row)
            if copies.pop(place, None) != digest or self._copied(place) is None:
                data = self._row(place)
                if data is not None and checksum(place, data) == digest:
                    self._pending[place] = (digest, data)
        self._pending.update(dict.fromkeys(copies))
        self.committed()

    def rewrite(self, places: Iterable[Place]) -> None:
        """Write rows again that are sound in memory and were damaged on the disk."""
        with transaction(self._main):
            for table, row in places:
                column = self._columns[table][0]
                query = f"UPDATE {table} SET {column} = {column} WHERE rowid = ?"  # noqa: S608
                self._main.execute(query, (row,))
            self.committing()
        self.committed()

    # -- inside -------------------------------------------------------------------------------------------

    def _opened(self) -> sqlite3.Connection:
        """The copy; a new and empty one if it cannot be read."""
        for _ in range(2):
            connection = sqlite3.connect(self._path, isolation_level=None)
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=NORMAL")
                connection.execute("PRAGMA busy_timeout=5000")
                connection.executescript(TABLES)
                if whole(connection):
                    self._path.chmod(0o600)
                    return connection
            except sqlite3.OperationalError as error:
                if is_full(error):
                    self.stale = True  # it is as it was, and is brought up to date when there is space
                    return connection
            except (sqlite3.DatabaseError, UnicodeError):
                pass
            connection.close()
            log.error("%s is damaged, and is made again of the database", self._path.name)
            remove(self._path)
        raise StorageFault(f"{self._path} cannot be made again", "check the disk of the state folder")

    def _noted(self, table: str, row: int, *values: Value) -> bytes:
        place, data = (table, row), packed(values)
        digest = checksum(place, data)
        self._pending[place] = (digest, data)
        return digest

    def _forgotten(self, table: str, row: int) -> None:
        self._pending[table, row] = None

    def _sound(self, table: str, row: int, stored: bytes | None, *values: Value) -> bool:
        if self.check(table, row, stored, values):
            return True
        self.refused = (table, row)
        return False

    def _row(self, place: Place) -> bytes | None:
        table, row = place
        if table not in self._columns:
            return None
        query = f"SELECT {listed(self._columns[table])} FROM {table} WHERE rowid = ?"  # noqa: S608
        found = self._main.execute(query, (row,)).fetchone()
        return None if found is None else packed(found)

    def _stored(self, place: Place) -> bytes | None:
        query = "SELECT sum FROM checksums WHERE tbl = ? AND row = ?"
        found = self._main.execute(query, place).fetchone()
        return found[0] if found else None

    def _copied(self, place: Place) -> bytes | None:
        """The copy of a row, if it is sound."""
        try:
            query = "SELECT sum, data FROM copies WHERE tbl = ? AND row = ?"
            found = self._copy.execute(query, place).fetchone()
        except sqlite3.Error:
            return None
        return found[1] if found and checksum(place, found[1]) == found[0] else None

    def _write(self, place: Place, values: tuple[Value, ...], new: bool) -> None:
        table, row = place
        columns = self._columns[table]
        if new:
            insert(self._main, table, columns, row, values)
        else:
            changes = ", ".join(f"{column} = ?" for column in columns)
            self._main.execute(f"UPDATE {table} SET {changes} WHERE rowid = ?", (*values, row))  # noqa: S608

    def _remove(self, place: Place) -> None:
        table, row = place
        statement = f"DELETE FROM {table} WHERE rowid = ?"  # noqa: S608
        try:
            self._main.execute(statement, (row,))
        except sqlite3.DatabaseError:  # an index has another key of this row than the table
            self._main.execute(f"REINDEX {table}")
            self._main.execute(statement, (row,))

    def _set_checksum(self, place: Place, sum: bytes) -> None:
        self._main.execute("INSERT OR REPLACE INTO checksums VALUES (?, ?, ?)", (*place, sum))

    @contextmanager
    def _allowed(self) -> Iterator[None]:
        """A damaged row may be changed only to repair it: any other change would give it a new checksum."""
        self._repairing = True
        try:
            yield
        finally:
            self._repairing = False


def _triggers(table: str, columns: list[str]) -> Iterator[str]:
    new = ", ".join(f"new.{column}" for column in columns)
    old = ", ".join(f"old.{column}" for column in columns)
    # Not INSERT OR REPLACE: in a trigger, the conflict clause of the statement outside counts.
    note = (
        f"DELETE FROM checksums WHERE tbl = '{table}' AND row = new.rowid;"  # noqa: S608
        f" INSERT INTO checksums VALUES ('{table}', new.rowid, noted('{table}', new.rowid, {new}))"
    )
    this = f"tbl = '{table}' AND row = old.rowid"
    stored = f"(SELECT sum FROM checksums WHERE {this})"  # noqa: S608
    yield f"CREATE TEMP TRIGGER {table}_inserted AFTER INSERT ON main.{table} BEGIN {note}; END"
    yield (
        f"CREATE TEMP TRIGGER {table}_sound BEFORE UPDATE ON main.{table} BEGIN"
        f" SELECT RAISE(ABORT, '{DAMAGED}') WHERE"
        f" CASE WHEN repairing() THEN 0 ELSE NOT sound('{table}', old.rowid, {stored}, {old}) END; END"
    )
    yield f"CREATE TEMP TRIGGER {table}_updated AFTER UPDATE ON main.{table} BEGIN {note}; END"
    yield (
        f"CREATE TEMP TRIGGER {table}_deleted AFTER DELETE ON main.{table} BEGIN"  # noqa: S608
        f" DELETE FROM checksums WHERE {this}; SELECT forgotten('{table}', old.rowid); END"
    )
