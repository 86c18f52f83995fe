"""Tables of older versions are brought up to date whole or not at all."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fedserver.store import database
from fedserver.store.store import Store
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.errors import StorageFault


def test_tables_of_an_older_version_are_brought_up_to_date_and_kept_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(database.connect(tmp_path / "shoal.db")) as first:
        first.execute("INSERT INTO devices VALUES ('d1', 'x', 1.0, 2.0)")
    before = database.VERSION
    monkeypatch.setattr(
        database, "STEPS", (*database.STEPS, "ALTER TABLE devices ADD COLUMN more TEXT DEFAULT 'm'")
    )
    monkeypatch.setattr(database, "VERSION", before + 1)
    with closing(database.connect(tmp_path / "shoal.db")) as second:
        assert second.execute("SELECT device, more FROM devices").fetchall() == [("d1", "m")]
    with closing(sqlite3.connect(tmp_path / f"shoal.db.version-{before}")) as kept:
        assert kept.execute("SELECT * FROM devices").fetchall() == [("d1", "x", 1.0, 2.0)]


def test_a_step_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(database.connect(tmp_path / "shoal.db")):
        before = database.VERSION
    step = "ALTER TABLE devices ADD COLUMN more TEXT; INSERT INTO no_such_table VALUES (1)"
    with monkeypatch.context() as patched:
        patched.setattr(database, "STEPS", (*database.STEPS, step))
        patched.setattr(database, "VERSION", before + 1)
        with pytest.raises(StorageFault, match="no_such_table"):
            database.connect(tmp_path / "shoal.db")
    with closing(database.connect(tmp_path / "shoal.db")) as after:
        assert after.execute("SELECT schema_version FROM meta").fetchone() == (before,)
        assert "more" not in [row[1] for row in after.execute("PRAGMA table_info(devices)")]


def test_stored_run_specifications_get_the_present_names_of_the_policy_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = {"is": "RoundPolicy", "devices": 4, "minimum": 2, "deadline": 60.0}
    policy |= {"over_select": 1.2345678901234567, "gather": 7.0, "silence": 8.0, "patience": 9}
    spec = {"is": "RunSpec", "name": "n", "algorithm": "flux", "parameters": {}, "policy": policy}
    with monkeypatch.context() as patched:
        patched.setattr(database, "STEPS", database.STEPS[:6])
        patched.setattr(database, "VERSION", 6)
        with closing(database.connect(tmp_path / "shoal.db")) as before:
            before.execute(
                "INSERT INTO runs VALUES ('r1', ?, 1.0, 'active', '', 3, '[]', '', 0)",
                (json.dumps({"format": 1, "value": spec}),),
            )
    with closing(Store(tmp_path)) as store:
        (record,) = store.runs.all()
    assert record.spec.policy == RoundPolicy(
        devices=4,
        minimum=2,
        deadline=60.0,
        oversample=1.2345678901234567,
        wait_for_devices=7.0,
        device_timeout=8.0,
        max_abandoned_rounds=9,
    )
