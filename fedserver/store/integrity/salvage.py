"""What is wrong with a database as a whole, and how a new one is filled from its copy."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from fedserver.store.integrity.row_bytes import Place, Value, checksum, packed, text, unpacked
from shoal.core.errors import StorageFault

OWN = ("checksums", "commits")
"""The tables in `shoal.db` that are about rows, and have no checksums themselves."""


def copy_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.copy")


def damaged(connection: sqlite3.Connection) -> list[Place]:
    """All rows that do not match their checksums, and all checksums without a row."""
    found: list[Place] = []
    known = tables(connection)
    for table in known:
        query = "SELECT row, sum FROM checksums WHERE tbl = ?"
        sums = dict(connection.execute(query, (table,)).fetchall())
        columns = listed(columns_of(connection, table))
        for row, *values in connection.execute(f"SELECT rowid, {columns} FROM {table}"):  # noqa: S608
            if sums.pop(row, None) != checksum((table, row), packed(values)):
                found.append((table, row))
        found += [(table, row) for row in sums]
    places = ", ".join("?" * len(known))
    query = f"SELECT tbl, row FROM checksums WHERE tbl NOT IN ({places})"  # noqa: S608
    return found + connection.execute(query, known).fetchall()


def tables(connection: sqlite3.Connection) -> list[str]:
    """The tables that have checksums."""
    rows = connection.execute("SELECT name FROM main.sqlite_master WHERE type = 'table' ORDER BY rowid")
    return [name for (name,) in rows if name not in OWN and not name.startswith("sqlite_")]


def columns_of(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


def whole(connection: sqlite3.Connection) -> bool:
    """Whether the pages of a database, and its indexes, do not contradict each other."""
    return bool(connection.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok")


def damage(path: Path, version: int, expected: list[tuple[str, str]]) -> str:
    """What is wrong with the database at `path` as a whole; "" if nothing is, or if it is new or of another
    version.

    version, expected: what it should have, as `schema` gives the latter. Raises sqlite3.OperationalError if
    the disk did not let the database be read.
    """
    if not path.exists():
        return "it is missing" if copy_of(path).exists() else ""
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.text_factory = text
            if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
                return "it is empty" if copied(path) else ""
            (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            return str(found) if found != "ok" else _contradiction(connection, path, version, expected)
    except sqlite3.OperationalError as error:
        if "no such" in str(error):
            return str(error)
        raise
    except (sqlite3.DatabaseError, UnicodeError) as error:  # or an error of SQLite that quotes damage
        return str(error)


def _contradiction(
    connection: sqlite3.Connection, path: Path, version: int, expected: list[tuple[str, str]]
) -> str:
    """What the database says of itself that cannot be, or that its copy contradicts."""
    known = [name for _, name in schema(connection)]
    if (found := copied(path)) is None or not found.number:
        return "" if "meta" in known else "it has no version"
    try:
        (present,) = connection.execute("SELECT schema_version FROM meta").fetchone()
        if present != version:
            return "" if _vouched(connection, present) else f"its version cannot be {present}"
        (number,) = connection.execute("SELECT number FROM commits").fetchone() or (None,)
    except (sqlite3.OperationalError, TypeError) as error:
        return str(error)
    if number is None or number < found.number:
        return "its last transactions are lost"
    return "" if schema(connection) == expected else "its schema is damaged"


def _vouched(connection: sqlite3.Connection, version: int) -> bool:
    """Whether the version has the checksum that it should have."""
    found = connection.execute("SELECT sum FROM checksums WHERE tbl = 'meta'").fetchall()
    return found == [(checksum(("meta", 1), packed((version,))),)]


def schema(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """The statements that made the tables, indexes and views, with their names."""
    rows = connection.execute("SELECT sql, name FROM main.sqlite_master WHERE sql IS NOT NULL ORDER BY name")
    return rows.fetchall()


class Copied(NamedTuple):
    """What a sound copy holds: the version of the schema, and the number of its last transaction."""

    version: int
    number: int


def copied(path: Path) -> Copied | None:
    """The copy of the database at `path`; None if there is none, or if it cannot be read."""
    if not copy_of(path).exists():
        return None
    try:
        with closing(sqlite3.connect(copy_of(path))) as copy:
            if not whole(copy):
                return None
            ((number,),) = copy.execute("SELECT number FROM copied").fetchall()
            found = copy.execute("SELECT row, sum, data FROM copies WHERE tbl = 'meta'").fetchall()
    except (sqlite3.Error, ValueError):
        return None
    if len(found) != 1 or checksum(("meta", found[0][0]), found[0][2]) != found[0][1]:
        return None
    (version,) = unpacked(found[0][2])
    return Copied(int(version or 0), number)


def fill(connection: sqlite3.Connection, path: Path) -> None:
    """Fill the new tables of `connection` from the copy of the database at `path`.

    Raises StorageFault if a copy is damaged.
    """
    with closing(sqlite3.connect(copy_of(path))) as copy, transaction(connection):
        known = {table: columns_of(connection, table) for table in tables(connection)}
        for table in (*known, *OWN):
            connection.execute(f"DELETE FROM {table}")  # noqa: S608 - the rows that a new table has
        for table, row, digest, data in copy.execute("SELECT tbl, row, sum, data FROM copies"):
            if checksum((table, row), data) != digest or table not in known:
                raise StorageFault(f"{copy_of(path).name} is damaged, too")
            insert(connection, table, known[table], row, unpacked(data))
            connection.execute("INSERT INTO checksums VALUES (?, ?, ?)", (table, row, digest))
        ((number,),) = copy.execute("SELECT number FROM copied").fetchall()
        connection.execute("INSERT INTO commits VALUES (?)", (number,))


def remove(path: Path) -> None:
    """Delete a database with what SQLite has beside it."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def insert(
    connection: sqlite3.Connection, table: str, columns: list[str], row: int, values: tuple[Value, ...]
) -> None:
    places = ", ".join("?" * (1 + len(columns)))
    statement = f"INSERT INTO {table} (rowid, {listed(columns)}) VALUES ({places})"  # noqa: S608
    connection.execute(statement, (row, *values))


def listed(columns: list[str]) -> str:
    return ", ".join(columns)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
