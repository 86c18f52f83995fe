"""Tables of older versions are brought up to date whole or not at all."""

import json
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from fedserver.coordinator.coordinator import Coordinator
from fedserver.store.engines import sqlite as database
from fedserver.store.store import Store
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.errors import StorageFault
from shoal.core.exchange.link import Outcome, Report
from tests.server.servers import expected, hands, models, scenario, serve_all
from tests.server.toys import same_models
from tests.waiting import HANG


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


def recorded(version: int, state: Path) -> None:
    """Make the state folder that a server of this version left."""
    found = json.loads((Path(__file__).parent / "recorded" / f"version_{version}.json").read_text())
    state.mkdir()
    with closing(sqlite3.connect(state / "shoal.db")) as tables:
        # The default rule has changed since. In the recorded round it was the same as "mean".
        recorded = "\n".join(found["tables"]).replace('"aggregation": "clipped"', '"aggregation": "mean"')
        tables.executescript(recorded)
    for name, data in found["blobs"].items():
        path = state / "blobs" / name[:2] / name
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes.fromhex(data))


def test_a_folder_of_an_earlier_version_opens_and_its_open_round_goes_on(tmp_path: Path) -> None:
    recorded(6, tmp_path / "state")

    async def story(coordinator: Coordinator) -> None:
        run = coordinator.runs["toy"]
        assert (run.engine.round, run.engine.reported) == (2, {"d0"})
        first = await coordinator.storage.reports.of_round("toy", 1)
        assert [each.payload.parts["examples"] for each in first] == [10, 11, 12]
        # d0 does not know whether its report counted: it sends the same one again.
        again = await hands(coordinator, 0)
        (stored,) = await coordinator.storage.reports.of_round("toy", 2)
        receipt = await again.link.report(Report("toy", 2, stored.attempt, stored.payload))
        assert receipt.outcome is Outcome.DUPLICATE
        await serve_all(coordinator)
        assert same_models(models(coordinator), expected(aggregation="mean"))

    scenario(story, tmp_path)
    assert (tmp_path / "state" / "shoal.db.version-6").is_file()


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
