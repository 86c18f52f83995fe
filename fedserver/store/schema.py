"""The tables of `shoal.db`, and how a connection is opened."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from fedserver.store.identities.tables import GAPS
from fedserver.store.identities.tables import TABLES as IDENTITIES
from shoal.core.errors import ConfigError, StorageFault
from shoal.shell import crash
from shoal.shell.disk import settle, temporary

FIRST = """
CREATE TABLE meta (schema_version INTEGER NOT NULL);
INSERT INTO meta VALUES (0);

CREATE TABLE runs (
    run TEXT PRIMARY KEY,
    spec TEXT NOT NULL,                  -- JSON
    created REAL NOT NULL,
    standing TEXT NOT NULL,
    reason TEXT NOT NULL,
    round INTEGER NOT NULL,              -- the one that is open, or will open next
    asked TEXT NOT NULL,                 -- JSON; empty while no round is open
    title TEXT NOT NULL,
    abandoned_in_a_row INTEGER NOT NULL
);

CREATE TABLE checkpoints (
    run TEXT NOT NULL REFERENCES runs,
    round INTEGER NOT NULL,              -- the one that opens with it
    structure TEXT NOT NULL,             -- JSON, see shoal.core.engine.checkpoint
    PRIMARY KEY (run, round)
);
CREATE TABLE checkpoint_blobs (
    run TEXT NOT NULL,
    round INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    PRIMARY KEY (run, round, sha256),
    FOREIGN KEY (run, round) REFERENCES checkpoints ON DELETE CASCADE
);
CREATE INDEX checkpoint_blobs_by_name ON checkpoint_blobs (sha256);

CREATE TABLE reports (
    run TEXT NOT NULL REFERENCES runs,
    round INTEGER NOT NULL,
    device TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    payload TEXT NOT NULL,               -- JSON
    PRIMARY KEY (run, round, device)
);
CREATE TABLE report_blobs (
    run TEXT NOT NULL,
    round INTEGER NOT NULL,
    device TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    PRIMARY KEY (run, round, device, sha256),
    FOREIGN KEY (run, round, device) REFERENCES reports ON DELETE CASCADE
);
CREATE INDEX report_blobs_by_name ON report_blobs (sha256);

CREATE VIEW needed_blobs AS
    SELECT run, sha256 FROM checkpoint_blobs UNION ALL SELECT run, sha256 FROM report_blobs;

CREATE TABLE rounds (
    run TEXT NOT NULL REFERENCES runs,
    round INTEGER NOT NULL,
    title TEXT NOT NULL,
    asked INTEGER NOT NULL,
    reported INTEGER NOT NULL,
    missing TEXT NOT NULL,               -- JSON: device -> why it did not count
    abandoned TEXT NOT NULL,             -- why there is no result; empty when there is one
    seconds REAL NOT NULL,
    PRIMARY KEY (run, round)
);

CREATE TABLE devices (
    device TEXT PRIMARY KEY,
    software TEXT NOT NULL,
    first_seen REAL NOT NULL,
    last_seen REAL NOT NULL
);
CREATE TABLE traffic (
    run TEXT NOT NULL REFERENCES runs,
    device TEXT NOT NULL,
    up INTEGER NOT NULL,
    down INTEGER NOT NULL,
    PRIMARY KEY (run, device)
);
CREATE TABLE log (
    number INTEGER PRIMARY KEY,
    run TEXT NOT NULL REFERENCES runs,
    at REAL NOT NULL,
    device TEXT NOT NULL,
    text TEXT NOT NULL
);
CREATE INDEX log_by_run ON log (run, number);
"""

EPOCH = """
CREATE TABLE epoch (
    secret BLOB NOT NULL,                -- proves that a mark is ours
    floor INTEGER NOT NULL               -- marks of starts before this one are never doubted
);
INSERT INTO epoch VALUES (randomblob(32), 0);
CREATE TABLE boots (
    number INTEGER PRIMARY KEY,
    boot TEXT NOT NULL,                  -- of this start alone
    revision INTEGER NOT NULL            -- how much had happened at its end, or until now
);
CREATE TABLE doubts (
    device TEXT PRIMARY KEY,
    mark TEXT NOT NULL,
    at REAL NOT NULL
);
"""

MIRROR = """
CREATE TABLE released (
    run TEXT NOT NULL REFERENCES runs,
    device TEXT NOT NULL,
    release TEXT NOT NULL,               -- SHA-256; or, without a guarantee, off, paper or bounds
    rho REAL NOT NULL,                   -- for one sample; 0 without a guarantee
    delta REAL NOT NULL,
    group_size INTEGER NOT NULL,
    PRIMARY KEY (run, device, release)
);
"""

CURVES = """
ALTER TABLE released ADD COLUMN curve BLOB NOT NULL DEFAULT x'';  -- float64, see privacy/cost.py
"""

POLICY = """
UPDATE runs SET spec = rename_policy_fields(spec);
"""

STEPS: tuple[str, ...] = (FIRST, IDENTITIES, EPOCH, MIRROR, GAPS, CURVES, POLICY)
"""The history of the tables: step n upgrades version n - 1 to n. A released step never changes."""
VERSION = len(STEPS)
POLICY_FIELDS = {
    "over_select": "oversample",
    "gather": "wait_for_devices",
    "silence": "device_timeout",
    "patience": "max_abandoned_rounds",
}
"""The fields of a round policy that have had another name in stored run specifications."""
RESTORE = "keep the folder as it is, and restore a backup: fedserver restore BACKUP --state DIR"


def connect(path: Path) -> sqlite3.Connection:
    """The database at `path`, made when it is new, brought up to date when an older version wrote it.

    A commit is on the disk when it returns. What was there before an update stays beside it, as
    shoal.db.version-N. Raises ConfigError when a newer version wrote it, StorageFault when it cannot be read.
    """
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=5000"):
            connection.execute(f"PRAGMA {pragma}")
        # JSON is rewritten by Python, since SQLite's own functions would round floats to 15 digits.
        connection.create_function("rename_policy_fields", 1, _rename_policy_fields, deterministic=True)
        _check(connection, path)
        found = _version(connection)
        if 0 < found < VERSION:
            _back_up(connection, path.with_name(f"{path.name}.version-{found}"))
            crash.point("server.migrating")
        for number, step in enumerate(STEPS[found:], found + 1):
            written = f"UPDATE meta SET schema_version = {number}"  # noqa: S608 - a number of ours
            connection.executescript(f"BEGIN; {step}; {written}; COMMIT;")
    except (sqlite3.Error, StorageFault) as error:
        connection.close()
        if isinstance(error, StorageFault):
            raise
        raise StorageFault(f"{path}: {error}", RESTORE) from error
    if 0 < found < VERSION:
        crash.point("server.migrated")
    if found > VERSION:
        connection.close()
        raise ConfigError(f"{path} has version {found}, this server reads {VERSION}", "use a newer fedserver")
    return connection


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Raises StorageFault when pages of the database contradict each other."""
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise StorageFault(f"{path} is damaged: {found}", RESTORE)


def _version(connection: sqlite3.Connection) -> int:
    """Of the tables that are there; 0 when there are none."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
        return 0
    (found,) = connection.execute("SELECT schema_version FROM meta").fetchone()
    return int(found)


def _back_up(connection: sqlite3.Connection, copy: Path) -> None:
    """A copy of the whole database in the file `copy`, which is whole or not there."""
    with temporary(copy.parent, 0o600) as file:
        with closing(sqlite3.connect(file.name)) as target:
            connection.backup(target)
        settle(file, copy)


def _rename_policy_fields(spec: str) -> str:
    """A stored run specification, with the present names of its policy's fields."""
    stored = json.loads(spec)
    policy = stored["value"]["policy"]
    stored["value"]["policy"] = {POLICY_FIELDS.get(name, name): value for name, value in policy.items()}
    return json.dumps(stored, sort_keys=True)
