"""The database in a state folder, `shoal.db`: SQLite, with a checksum and a second copy of every row."""

import functools
import logging
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from fedserver.store.database import RESTORE, Database
from fedserver.store.disk_space import is_full
from fedserver.store.engines.schema import CHECKSUMS, EXPENDABLE, SCHEMA, VERSION, check_version
from fedserver.store.integrity import salvage
from fedserver.store.integrity.redundancy import DamagedRow, Redundancy
from fedserver.store.integrity.row_bytes import Place, text
from shoal.core.errors import DiskFull, StorageFault, TooManyFiles
from shoal.shell.disk import is_out_of_descriptors, settle, storing, temporary

log = logging.getLogger("shoal.server")

MAX_VALUES = 500
"""Rows whose checksums are looked up by one query: before 2020, SQLite took 999 values at most."""
REPAIRS = 3
"""How often rows are read and repaired: a repair may reveal that an index is damaged, too."""
MANY = 50
"""From this many damaged rows on, the cause is not in the rows: the database is made again of its copy."""


class SqliteDatabase(Database):
    """One connection to the file at `path`, which is created if it is new."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        with _faults():
            if lost := salvage.damage(path, VERSION, _schema()):
                self._rebuild(path, lost)
            self._open(path)
            if not self.connection.execute("SELECT 1 FROM commits").fetchone():
                self.redundancy.adopt()
            if len(found := salvage.damaged(self.connection)) > MANY and salvage.copied(path) is not None:
                self.close()
                self._rebuild(path, f"{len(found)} rows are damaged")
                self._open(path)
                found = salvage.damaged(self.connection)
            for place in found:
                self.repair(place)
            self.redundancy.refresh()

    def _open(self, path: Path) -> None:
        self.connection = connect(path)
        try:
            self.redundancy = Redundancy(self.connection, path, EXPENDABLE)
        except BaseException:
            self.connection.close()
            raise

    def _rebuild(self, path: Path, lost: str) -> None:
        rebuild(path, lost)
        self._found(f"{path.name} was damaged ({lost}), and was made again of {salvage.copy_of(path).name}")

    def _found(self, what: str) -> None:
        log.error("%s", what)
        self.repaired.append(what)

    def close(self) -> None:
        self.redundancy.close()
        self.connection.close()

    def check(self) -> None:
        """Compare all rows as they are on the disk with their checksums, and restore damaged ones.

        They are read by a connection of its own, because this one remembers pages that it has read.
        """
        with _faults():
            try:
                with closing(sqlite3.connect(self._path, isolation_level=None)) as reader:
                    reader.text_factory = text
                    found = salvage.damaged(reader) if salvage.whole(reader) else None
            except (sqlite3.DatabaseError, UnicodeError) as error:
                if isinstance(error, sqlite3.OperationalError):
                    raise
                found = None
            if found is None:
                raise StorageFault(
                    f"{self._path.name} is damaged", "the next start makes it again of its copy"
                )
            if sound := [place for place in found if self.repair(place)]:
                self.redundancy.rewrite(sound)
            if self.redundancy.stale:
                self.redundancy.refresh()

    def repair(self, place: Place) -> bool:
        """Restore a damaged row from its copy. Returns False for a row that cannot be restored: if it stays,
        using it is an error."""
        try:
            self._found(self.redundancy.repair(place))
        except DamagedRow as damaged:
            self._found(str(damaged))
            return False
        return True

    def execute(self, statement: str, values: Sequence[object] = ()) -> None:
        self.connection.execute(statement, values)

    def execute_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        self.connection.executemany(statement, rows)

    def query(self, query: str, values: Sequence[object] = ()) -> list[sqlite3.Row]:
        with _faults():
            cursor = self.connection.cursor()
            cursor.row_factory = sqlite3.Row
            return cursor.execute(query, values).fetchall()

    def rows(self, table: str, rest: str = "", values: Sequence[object] = ()) -> list[sqlite3.Row]:
        """Each row is compared with its checksum; a damaged one is restored from its copy."""
        query = f"SELECT {table}.rowid AS row_, {table}.* FROM {table} {rest}"  # noqa: S608 - a table of ours
        wrong: list[int] = []
        for _ in range(REPAIRS):
            found = self.query(query, values)
            sums = self._checksums(table, [row["row_"] for row in found])
            wrong = [
                row for row, *each in found if not self.redundancy.check(table, row, sums.get(row), each)
            ]
            if not wrong:
                return found
            for row in wrong:
                with _faults():
                    self._found(self.redundancy.repair((table, row)))
        raise DamagedRow((table, wrong[0]), RESTORE)

    def _checksums(self, table: str, numbers: list[int]) -> dict[int, bytes]:
        """The checksums of these rows, and of no others: a table may have many more."""
        found = dict[int, bytes]()
        for start in range(0, len(numbers), MAX_VALUES):
            part = numbers[start : start + MAX_VALUES]
            marks = ", ".join("?" * len(part))
            query = f"SELECT row, sum FROM checksums WHERE tbl = ? AND row IN ({marks})"  # noqa: S608
            found |= {row: stored for row, stored in map(tuple, self.query(query, (table, *part)))}  # noqa: C416
        return found

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Raises DamagedRow if the block would change a damaged row; the row is restored then, and the block
        can be repeated.
        """
        self._after_commit.clear()
        with _faults():
            self.redundancy.refused = None
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.redundancy.committing()
                self.connection.execute("COMMIT")
            except BaseException as error:
                if self.connection.in_transaction:  # a full disk can have ended it already
                    self.connection.execute("ROLLBACK")
                self.redundancy.rolled_back()
                if isinstance(error, sqlite3.Error) and (place := self.redundancy.refused) is not None:
                    self._found(self.redundancy.repair(place))
                    raise DamagedRow(place) from error
                raise
        self.redundancy.committed()
        for action in tuple(self._after_commit):
            action()


CLOSED = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
"""What SQLite reports where a right is missing, or where the disk is read-only."""
SPACE = "free some space on the disk of the state folder"


@contextmanager
def _faults() -> Iterator[None]:
    """Turn SQLite's errors into StorageFault, DiskFull if the disk is full, or TooManyFiles."""
    try:
        yield
    except UnicodeDecodeError as error:  # SQLite quotes a schema that is damaged
        raise StorageFault(f"shoal.db is damaged: {error}", RESTORE) from error
    except sqlite3.Error as error:
        if is_full(error):
            raise DiskFull(f"shoal.db: {error}", SPACE) from error
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_CANTOPEN and is_out_of_descriptors():
            raise TooManyFiles(f"shoal.db: {error}", "close other connections and files") from error
        hint = "check the disk of the state folder"
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in CLOSED:
            hint = f"let the user who runs this write to the state folder and all in it; or {hint}"
        raise StorageFault(f"shoal.db: {error}", hint) from error


def connect(path: Path) -> sqlite3.Connection:
    """Open the database at `path`, and create it if it is new.

    A commit is on disk when it returns. Raises ConfigError if it has tables of another version, StorageFault
    if it cannot be read.
    """
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=5000"):
            connection.execute(f"PRAGMA {pragma}")
        _check(connection, path)
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
            ((found,),) = connection.execute("SELECT schema_version FROM meta").fetchall()
            check_version(found, str(path))
        else:
            _make_tables(connection)
    except BaseException as error:
        connection.close()
        if is_full(error):
            raise DiskFull(f"{path}: {error}", SPACE) from error
        if isinstance(error, sqlite3.Error):
            raise StorageFault(f"{path}: {error}", RESTORE) from error
        raise
    return connection


def rebuild(path: Path, lost: str) -> None:
    """Make a damaged database again of its copy; it stays beside the new one, as shoal.db.damaged.

    Raises StorageFault if there is no sound copy. Safe to repeat after an interruption.
    """
    copied = salvage.copied(path)
    if copied is None or not copied.number or copied.version != VERSION:
        raise StorageFault(f"{path} is damaged: {lost}", RESTORE)
    with temporary(path.parent, 0o600) as file:
        with closing(sqlite3.connect(file.name, isolation_level=None)) as connection:
            _make_tables(connection)
            salvage.fill(connection, path)
        # A write-ahead log that stayed would be taken for one of the new database.
        aside = path.with_name(f"{path.name}.damaged")
        with storing(path):
            salvage.remove(aside)
            for suffix in ("-wal", "-shm", ""):
                with suppress(FileNotFoundError):
                    path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
        settle(file, path)


def _make_tables(connection: sqlite3.Connection) -> None:
    connection.executescript(f"BEGIN; {SCHEMA} {CHECKSUMS} COMMIT;")


@functools.cache
def _schema() -> list[tuple[str, str]]:
    """The schema that a database has, as `salvage.schema` gives it."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        _make_tables(connection)
        return salvage.schema(connection)


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Raises StorageFault if pages of the database contradict each other."""
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise StorageFault(f"{path} is damaged: {found}", RESTORE)
