"""The tables are made whole or not at all, those of another version are refused, and commits are synced."""

import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from fedserver.store.engines import sqlite as database
from fedserver.store.store import Store
from shoal.core.errors import ConfigError, StorageFault
from tests.waiting import HANG


def test_tables_that_cannot_all_be_made_are_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(database, "SCHEMA", f"{database.SCHEMA} INSERT INTO no_such_table VALUES (1);")
        with pytest.raises(StorageFault, match="no_such_table"):
            database.connect(tmp_path / "shoal.db")
    with closing(sqlite3.connect(tmp_path / "shoal.db")) as left:
        assert left.execute("SELECT name FROM sqlite_master").fetchall() == []
    Store(tmp_path).close()


@pytest.mark.parametrize("version", [database.VERSION - 1, database.VERSION + 1])
def test_a_database_of_another_version_is_refused_and_left_as_it_is(tmp_path: Path, version: int) -> None:
    """Its tables differ from those of this version, and that is no damage."""
    with closing(Store(tmp_path)) as store:
        store.database.connection.execute("ALTER TABLE devices ADD COLUMN more TEXT")
        with store.database.transaction():
            store.database.execute("UPDATE meta SET schema_version = ?", (version,))
    before = (tmp_path / "shoal.db").read_bytes()
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"has version {version} of the tables") as refused:
            Store(tmp_path)
        assert "use the version of fedserver that it was made with" in refused.value.hint
    assert (tmp_path / "shoal.db").read_bytes() == before
    assert not list(tmp_path.glob("*.damaged*"))


def test_a_commit_is_synced_and_references_are_enforced(tmp_path: Path) -> None:
    def setting(connection: sqlite3.Connection, name: str) -> object:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]

    full, normal = 2, 1
    with closing(Store(tmp_path)) as store:
        found = store.database.connection
        assert (setting(found, "journal_mode"), setting(found, "synchronous")) == ("wal", full)
        assert setting(found, "foreign_keys") == 1
        # The copy may lag behind after a power failure, but its pages must not contradict each other.
        copy = store.database.redundancy._copy
        assert (setting(copy, "journal_mode"), setting(copy, "synchronous")) == ("wal", normal)


PROGRAM = """
import os, sys
from pathlib import Path
from fedserver.store.store import Store
store = Store(Path(sys.argv[1]))
os.write(2, b"MARK")
with store.database.transaction():
    store.database.execute("INSERT INTO devices VALUES ('d1', 'x', 1.0, 2.0)")
os.write(2, b"MARK")
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace")
def test_a_commit_asks_the_disk_to_sync_the_log_and_nothing_else(tmp_path: Path) -> None:
    """What the disk is asked for, and not only what a setting says."""
    log = tmp_path / "calls"
    options = ["-f", "-qq", "-y", "-o", str(log), "-e", "trace=fsync,fdatasync,write"]
    line = ["strace", *options, sys.executable, "-c", PROGRAM, str(tmp_path / "state")]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=HANG, check=False)
    assert ran.stderr == "MARKMARK"
    between = log.read_text().split('"MARK"')[1]
    synced = re.findall(r"f(?:data)?sync\(\d+<([^>]*)>", between)
    assert [Path(path).name for path in synced] == ["shoal.db-wal"]
