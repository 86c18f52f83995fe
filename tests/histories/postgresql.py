"""PostgreSQL under the server of a history: a session is its process's, and may be lost in a commit.

The database server is real, and on a machine of its own that nothing happens to. A process that dies leaves
its session to PostgreSQL, which rolls back and releases the lock; here that happens when the process is
reaped, so that a history does not wait for it. A commit that fails rolls back for want of space, or costs the
session: then only the next start can tell whether it holds.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg
from psycopg.rows import dict_row

from fedserver.ha.postgresql import PostgresqlDatabase, read
from fedserver.store.engines import Elsewhere
from tests.histories.database import Looked
from tests.histories.disk import Disk
from tests.histories.processes import SERVER, current

_connect = psycopg.connect
NEW = "DROP SCHEMA public CASCADE; CREATE SCHEMA public"


class Session(psycopg.Connection[Any]):
    """A session of the server's process. committed: called after each commit."""

    disk: Disk
    committed: Callable[[], None]

    def execute(self, query: Any, *values: Any, **options: Any) -> Any:
        if query == "COMMIT":
            return self._commit()
        if query == "BEGIN" and (process := current()) is not None:
            process.step("begin")
        return super().execute(query, *values, **options)

    def _commit(self) -> Any:
        path = self.disk.root / "database"
        try:
            self.disk.before("commit", path, grows=True)
        except OSError:
            if self.disk.full:
                super().execute("ROLLBACK")
                raise psycopg.errors.DiskFull("no space left on device") from None
            if self.disk.chance.random() < 0.5:
                super().execute("COMMIT")
                self.committed()
            self.close()
            raise psycopg.OperationalError("the session was lost in a commit") from None
        cursor = super().execute("COMMIT")
        self.committed()
        self.disk.after("commit", path)
        return cursor

    def close(self) -> None:
        """What PostgreSQL does once it notices that a session is over."""
        with suppress(psycopg.Error):
            super().execute("ROLLBACK")
            super().execute("SELECT pg_advisory_unlock_all()")
        super().close()


class OnPostgresql(Looked):
    """See `tests.histories.database.Looked`. What was in the database is gone."""

    not_yet = psycopg.errors.UndefinedTable

    def __init__(self, url: str, state: Path) -> None:
        super().__init__(state)
        self._session = _connect(url, autocommit=True, row_factory=dict_row)
        self._session.execute(NEW)
        self.table = partial(read, url)
        self.elsewhere, self._shared, self._commits = Elsewhere(url, state / "shared"), state / "shared", 0

    def _committed(self) -> None:
        self._commits += 1

    def version(self) -> int:
        return self._commits

    @contextmanager
    def used_by(self, disk: Disk) -> Iterator[None]:
        """Inside, the server's sessions are such. Time stands still between its steps, so none is silent."""

        def connect(url: str, **options: Any) -> Any:
            process = current()
            if process is None or process.machine != SERVER:
                return _connect(url, **options)
            session = Session.connect(url, **options)
            session.disk, session.committed = disk, self._committed
            process.open.append(session)
            return session

        with (
            patch.object(psycopg, "connect", connect),
            patch.object(PostgresqlDatabase, "_beat", lambda database: None),
            patch.object(PostgresqlDatabase, "is_silent", lambda database: False),
        ):
            yield

    @property
    def folder(self) -> Path:
        return next(self._shared.glob("blobs-*"), self._shared)

    def query(self, query: str, *values: Any) -> list[Any]:
        return self._session.execute(query.replace("?", "%s").encode(), values).fetchall()

    def close(self) -> None:
        self._session.close()
