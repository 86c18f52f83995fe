"""Tables of older versions are brought up to date whole or not at all."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fedserver.store import schema
from shoal.core.errors import StorageFault


def test_tables_of_an_older_version_are_brought_up_to_date_and_kept_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(schema.connect(tmp_path / "shoal.db")) as first:
        first.execute("INSERT INTO devices VALUES ('d1', 'x', 1.0, 2.0)")
    before = schema.VERSION
    monkeypatch.setattr(
        schema, "STEPS", (*schema.STEPS, "ALTER TABLE devices ADD COLUMN more TEXT DEFAULT 'm'")
    )
    monkeypatch.setattr(schema, "VERSION", before + 1)
    with closing(schema.connect(tmp_path / "shoal.db")) as second:
        assert second.execute("SELECT device, more FROM devices").fetchall() == [("d1", "m")]
    with closing(sqlite3.connect(tmp_path / f"shoal.db.version-{before}")) as kept:
        assert kept.execute("SELECT * FROM devices").fetchall() == [("d1", "x", 1.0, 2.0)]


def test_a_step_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(schema.connect(tmp_path / "shoal.db")):
        before = schema.VERSION
    step = "ALTER TABLE devices ADD COLUMN more TEXT; INSERT INTO no_such_table VALUES (1)"
    with monkeypatch.context() as patched:
        patched.setattr(schema, "STEPS", (*schema.STEPS, step))
        patched.setattr(schema, "VERSION", before + 1)
        with pytest.raises(StorageFault, match="no_such_table"):
            schema.connect(tmp_path / "shoal.db")
    with closing(schema.connect(tmp_path / "shoal.db")) as after:
        assert after.execute("SELECT schema_version FROM meta").fetchone() == (before,)
        assert "more" not in [row[1] for row in after.execute("PRAGMA table_info(devices)")]
