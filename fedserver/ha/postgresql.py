"""A database on PostgreSQL. The session that writes holds a lock, and only that session can commit.

    server A ── session, holds the lock ──> PostgreSQL <── asks for the lock, once a second ── server B

There is one lock for each database, and PostgreSQL releases it when the session ends, for whatever reason:
the process died, the line is cut, or the session was silent for `SILENCE`, because its process was stopped.
So a server that has lost the lock has lost the power to commit as well, and no clocks have to agree. A thread
sends a query every `BEAT`, so that a session whose process has nothing to write is not silent.

Rows have no checksums and no second copies here: that is the task of PostgreSQL's own page checksums,
replicas and backups, and a database without page checksums is reported at the start.
"""

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.types.numeric import IntDumper
from psycopg.types.string import StrDumper

from fedserver.ha.translation import numbered, statements
from fedserver.store.database import Database
from fedserver.store.engines.schema import SCHEMA, check_version
from shoal.core.errors import ConfigError, DatabaseLost, DiskFull, NotLeader, StorageFault

log = logging.getLogger("shoal.server")

LOCK = 0x73686F616C  # "shoal"
"""The name of the lock; PostgreSQL has one of that name for each database."""
BEAT, SILENCE = 2.0, 8.0
"""Seconds between two signs of life of the session, and after how many without one PostgreSQL ends it."""
OPTIONS = {
    "connect_timeout": 5,
    "keepalives_idle": 4,  # these four notice a database whose machine is gone, within ten seconds
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "fedserver",
    "client_encoding": "UTF8",
}
SETTINGS = (
    "SET idle_session_timeout = '{silence}ms'",
    "SET idle_in_transaction_session_timeout = '{silence}ms'",
    "SET tcp_user_timeout = 10000",  # the same for PostgreSQL, which may wait for an answer of ours
    "SET tcp_keepalives_idle = 4",
    "SET tcp_keepalives_interval = 2",
    "SET tcp_keepalives_count = 3",
    "SET standard_conforming_strings = on",
)


class Row(tuple[Any, ...]):
    """A row; see `fedserver.store.database.Row`."""

    columns: dict[str, int]

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self.columns[key] if isinstance(key, str) else key)

    def keys(self) -> list[str]:
        return list(self.columns)


class PostgresqlDatabase(Database):
    """The database at `url`, which only this process may write until the session ends.

    Raises NotLeader while another process has it, ConfigError if it cannot be used, and StorageFault.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url, self._ended, self._heard = url, threading.Event(), time.monotonic()
        with _faults():
            self.connection = _session(url)
            try:
                _make_tables(self.connection)
                for warning in _warnings(self.connection):
                    log.warning("%s", warning)
            except BaseException:
                _end(self.connection)
                raise
        self._beating = threading.Thread(target=self._beat, name="database session", daemon=True)
        self._beating.start()

    def close(self) -> None:
        self._ended.set()
        self._beating.join()
        _end(self.connection)

    def execute(self, statement: str, values: Sequence[object] = ()) -> None:
        self.connection.execute(numbered(statement), values)

    def execute_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        with self.connection.cursor() as cursor:
            cursor.executemany(numbered(statement), rows)

    def query(self, query: str, values: Sequence[object] = ()) -> list[Row]:
        with _faults():
            return self.connection.execute(numbered(query), values).fetchall()

    def rows(self, table: str, rest: str = "", values: Sequence[object] = ()) -> list[Row]:
        return self.query(f"SELECT * FROM {table} {rest}", values)  # noqa: S608 - a table of ours

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._after_commit.clear()
        with _faults():
            self.connection.execute("BEGIN")
            try:
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                with suppress(psycopg.Error):  # the session may be over, and PostgreSQL rolls back then
                    self.connection.execute("ROLLBACK")
                raise
        for action in tuple(self._after_commit):
            action()

    def check(self) -> None:
        """Nothing: PostgreSQL verifies the checksum of each page that it reads."""

    def is_silent(self) -> bool:
        return time.monotonic() - self._heard > SILENCE

    def _beat(self) -> None:
        """Keep the session from being silent, and notice its end."""
        while not self._ended.wait(BEAT):
            began = time.monotonic()
            try:
                if self.connection.info.transaction_status is not psycopg.pq.TransactionStatus.ACTIVE:
                    with _faults():
                        self.connection.execute("SELECT 1")
                    self._heard = time.monotonic()
                elif read(self._url, WORKS.format(pid=self.connection.info.backend_pid, lock=LOCK)):
                    self._heard = began  # PostgreSQL takes long over a statement, and ends no such session
            except StorageFault as fault:
                if self.connection.closed:
                    self.lost.set_result(fault)
                    return


HOLDER = """
SELECT a.usename, a.client_addr, a.pid FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND ((l.classid::bigint << 32) | l.objid::bigint) = $1
"""


WORKS = """
SELECT 1 FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.pid = {pid} AND a.state = 'active' AND l.locktype = 'advisory' AND l.granted
AND ((l.classid::bigint << 32) | l.objid::bigint) = {lock}
"""
"""A row if this session has the lock, and is at work."""


def _holder(connection: "psycopg.Connection[Row]") -> str:
    """Who has the lock, as far as PostgreSQL tells: it may not be a server of ours that takes it."""
    for user, address, pid in connection.execute(HOLDER, (LOCK,)).fetchall():
        return (
            f": its lock is held by {user} from {address or 'the same machine'}, process {pid} of PostgreSQL"
        )
    return ""


def _session(url: str) -> "psycopg.Connection[Row]":
    """A session that holds the lock."""
    try:
        connection = psycopg.connect(url, autocommit=True, row_factory=_rows, **OPTIONS)  # type: ignore[arg-type]
    except psycopg.ProgrammingError as error:
        raise ConfigError(
            f"the address of the database cannot be read: {error}", "write postgresql://USER@HOST/NAME"
        ) from None
    try:
        connection.cursor_factory = psycopg.RawCursor
        connection.adapters.register_dumper(str, _TextDumper)
        connection.adapters.register_dumper(bool, _FlagDumper)
        for setting in SETTINGS:
            connection.execute(setting.format(silence=int(SILENCE * 1000)))
        ((held,),) = connection.execute("SELECT pg_try_advisory_lock($1)", (LOCK,)).fetchall()
        if not held:
            who = _holder(connection)
            raise NotLeader(
                f"another server uses this database{who}", "stop it first, or let this one stand by"
            )
        ((durable,),) = connection.execute("SHOW synchronous_commit").fetchall()
        if durable == "off":  # what is acknowledged is durable, whatever the default of this database
            connection.execute("SET synchronous_commit = on")
    except BaseException:
        connection.close()
        raise
    return connection


def _end(connection: "psycopg.Connection[Row]") -> None:
    """Release the lock, and end the session: by itself, PostgreSQL notices only a moment later."""
    with suppress(psycopg.Error):
        connection.execute("SELECT pg_advisory_unlock($1)", (LOCK,))
    connection.close()


def _make_tables(connection: "psycopg.Connection[Row]") -> None:
    """Make the tables of a new database. Raises ConfigError if the database has those of another version."""
    ((there,),) = connection.execute("SELECT to_regclass('meta') IS NOT NULL").fetchall()
    if there:
        ((found,),) = connection.execute("SELECT schema_version FROM meta").fetchall()
        check_version(found, "the database")
        return
    with connection.transaction():
        for statement in statements(SCHEMA):
            connection.execute(statement)


def _warnings(connection: "psycopg.Connection[Row]") -> Iterator[str]:
    """What an operator should know about this database."""
    unsafe = {
        "fsync": "fsync is off in PostgreSQL: after a power failure, work that was acknowledged may be lost",
        "full_page_writes": "full_page_writes is off in PostgreSQL: a power failure may damage the database",
        "data_checksums": "this PostgreSQL has no page checksums, so damage on its disk is not noticed: "
        "enable them with pg_checksums",
    }
    for name, warning in unsafe.items():
        ((value,),) = connection.execute(f"SHOW {name}").fetchall()
        if value == "off":
            yield warning


def read(url: str, query: str) -> list[tuple[Any, ...]]:
    """The rows of a query, beside the server that uses the database. Raises DatabaseLost and StorageFault."""
    with _faults(), psycopg.connect(url, autocommit=True, **OPTIONS) as connection:  # type: ignore[arg-type]
        connection.read_only = True
        return connection.execute(query.encode()).fetchall()


@contextmanager
def _faults() -> Iterator[None]:
    """Turn PostgreSQL's errors into StorageFault, or DiskFull if its disk is full."""
    try:
        yield
    except psycopg.errors.DiskFull as error:
        raise DiskFull(f"the database: {_said(error)}", "free some space on the database's disk") from error
    except psycopg.OperationalError as error:
        raise DatabaseLost(f"the database: {_said(error)}", "check that PostgreSQL runs there") from error
    except psycopg.Error as error:
        raise StorageFault(
            f"the database: {_said(error)}", "check the database server and its log"
        ) from error


def _said(error: Exception) -> str:
    return " ".join(str(error).split())


def _rows(cursor: "psycopg.Cursor[Any]") -> Callable[[Sequence[Any]], Row]:
    return _row_of(tuple(each.name for each in cursor.description or ()))


@functools.cache
def _row_of(columns: tuple[str, ...]) -> type[Row]:
    """The rows with these columns: there are as many kinds as queries in the store."""
    return type("Row", (Row,), {"columns": {name: place for place, name in enumerate(columns)}})


class _TextDumper(StrDumper):
    """Text, without the one character that PostgreSQL cannot store, since some text comes from peers."""

    def dump(self, obj: str) -> Any:
        return super().dump(obj.replace("\0", "\ufffd"))


class _FlagDumper(IntDumper):
    """True and False as 1 and 0, as SQLite stores them."""

    oid = psycopg.adapters.types["int8"].oid

    def dump(self, obj: Any) -> Any:
        return b"1" if obj else b"0"
