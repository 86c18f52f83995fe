"""A kill -9 while the tables are brought up to date: the next start does it, from what was there."""

import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fedserver.store.engines import sqlite as database
from shoal.shell import crash
from tests.crash.lab import FORKS

STEP = "ALTER TABLE devices ADD COLUMN more TEXT DEFAULT 'm'"


def update(path: str, point: str) -> None:
    os.environ[crash.VARIABLE] = point
    database.STEPS, database.VERSION = (*database.STEPS, STEP), database.VERSION + 1
    database.connect(Path(path)).close()


@pytest.mark.parametrize("point", ["server.migrating", "server.migrated", "disk.synced", "disk.renamed"])
def test_an_update_of_the_tables_that_is_killed_is_done_by_the_next_start(tmp_path: Path, point: str) -> None:
    path = tmp_path / "shoal.db"
    with closing(database.connect(path)) as first:
        first.execute("INSERT INTO devices (device, software, first_seen, last_seen) VALUES ('d', 'x', 1, 2)")
    codes = []
    for each in (point, ""):
        process = FORKS.Process(target=update, args=(str(path), each))
        process.start()
        process.join()
        codes.append(process.exitcode)
    assert codes == [-signal.SIGKILL, 0]
    with (
        closing(sqlite3.connect(path)) as after,
        closing(sqlite3.connect(f"{path}.version-{database.VERSION}")) as before,
    ):
        assert after.execute("SELECT device, more FROM devices").fetchall() == [("d", "m")]
        assert before.execute("SELECT device FROM devices").fetchall() == [("d",)]
        assert after.execute("PRAGMA integrity_check").fetchone() == ("ok",)
