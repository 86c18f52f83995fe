"""The database of a state folder, `shoal.db`: its tables, and transactions on one connection."""

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from shoal.core.engine.checkpoint import decode
from shoal.core.errors import ConfigError, DiskFull, StorageFault
from shoal.core.exchange.payload import Payload
from shoal.core.exchange.wire import payload_to_bytes
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

IDENTITIES = """
CREATE TABLE audit (
    number INTEGER PRIMARY KEY,          -- counts from 1, without a gap
    line TEXT NOT NULL                   -- see fedserver.store.identities.audit
);
CREATE TABLE tokens (
    token TEXT PRIMARY KEY,
    key BLOB NOT NULL,                   -- SHA-256 of the secret, which is not stored
    role TEXT NOT NULL,
    uses INTEGER NOT NULL,
    used INTEGER NOT NULL,
    created REAL NOT NULL,
    expires REAL NOT NULL,
    labels TEXT NOT NULL,                -- JSON
    pattern TEXT NOT NULL,
    hold INTEGER NOT NULL,
    wrong INTEGER NOT NULL,              -- how many proofs were wrong
    standing TEXT NOT NULL
);
CREATE TABLE identities (
    device TEXT PRIMARY KEY,
    display TEXT NOT NULL,
    role TEXT NOT NULL,
    labels TEXT NOT NULL,                -- JSON
    standing TEXT NOT NULL,
    created REAL NOT NULL,
    spki TEXT NOT NULL,                  -- SHA-256 of the key that it joined with
    token TEXT NOT NULL REFERENCES tokens
);
CREATE TABLE certificates (
    number INTEGER PRIMARY KEY,          -- in the order in which they were issued
    device TEXT NOT NULL REFERENCES identities,
    serial TEXT NOT NULL UNIQUE,
    spki TEXT NOT NULL UNIQUE,           -- one key, one certificate
    pem BLOB NOT NULL,
    root TEXT NOT NULL,                  -- the root that signed it
    bundle TEXT NOT NULL,                -- JSON: the roots that were sent with it
    issued REAL NOT NULL,
    expires REAL NOT NULL,
    first_used REAL,
    void INTEGER NOT NULL                -- 1: a later one was used, or issued before this one was used
);
CREATE INDEX certificates_by_device ON certificates (device);
CREATE TABLE placements (
    device TEXT NOT NULL,
    day INTEGER NOT NULL,                -- since 1970, UTC
    count INTEGER NOT NULL,
    PRIMARY KEY (device, day)
);
"""

HISTORY = """
CREATE TABLE epoch (
    secret BLOB NOT NULL,                -- authenticates the marks of this server
    floor INTEGER NOT NULL               -- marks of earlier starts never conflict
);
INSERT INTO epoch VALUES (randomblob(32), 0);
CREATE TABLE boots (
    number INTEGER PRIMARY KEY,
    boot TEXT NOT NULL,                  -- the random name of this start
    revision INTEGER NOT NULL            -- the latest one of this start
);
CREATE TABLE doubts (
    device TEXT PRIMARY KEY,
    mark TEXT NOT NULL,
    at REAL NOT NULL
);
"""

RELEASED = """
CREATE TABLE released (
    run TEXT NOT NULL REFERENCES runs,
    device TEXT NOT NULL,
    release TEXT NOT NULL,               -- SHA-256; or, without a guarantee, its kind
    rho REAL NOT NULL,                   -- for one sample; 0 without a guarantee
    delta REAL NOT NULL,
    group_size INTEGER NOT NULL,
    PRIMARY KEY (run, device, release)
);
"""

GAPS = """
CREATE TABLE gaps (                      -- see fedserver.store.identities.restored
    number INTEGER NOT NULL,             -- the last known line of the audit log
    hash TEXT NOT NULL,                  -- the hash of that line
    since REAL NOT NULL,                 -- when that line was written
    until REAL                           -- when the restored state was accepted; NULL: not yet
);
CREATE TABLE reissued (
    device TEXT PRIMARY KEY,
    serial TEXT NOT NULL                 -- the last certificate in a copied log, if no row has it
);
"""

CURVES = """
ALTER TABLE released ADD COLUMN curve BLOB NOT NULL DEFAULT x'';  -- float64, see privacy/cost.py
"""

POLICY = """
UPDATE runs SET spec = rename_policy_fields(spec);
"""

ACCURACY = """
ALTER TABLE rounds ADD COLUMN accuracy REAL;  -- mean held-out accuracy; NULL where no device measured it
"""

REPORTS = """
ALTER TABLE reports ADD COLUMN message BLOB NOT NULL DEFAULT x'';  -- as on the wire
UPDATE reports SET message = payload_to_bytes(payload);
ALTER TABLE reports DROP COLUMN payload;
"""

FLEET = """
ALTER TABLE runs ADD COLUMN memory TEXT NOT NULL DEFAULT '';  -- JSON of shoal.core.engine.attendance.Memory
ALTER TABLE runs ADD COLUMN opened REAL NOT NULL DEFAULT 0;   -- when the open round was opened; 0: unknown
"""

STEPS: tuple[str, ...] = (
    FIRST,
    IDENTITIES,
    HISTORY,
    RELEASED,
    GAPS,
    CURVES,
    POLICY,
    ACCURACY,
    REPORTS,
    FLEET,
)
"""The migrations: step n upgrades version n - 1 to n. The SQL of a released step never changes."""
VERSION = len(STEPS)
POLICY_FIELDS = {
    "over_select": "oversample",
    "gather": "wait_for_devices",
    "silence": "device_timeout",
    "patience": "max_abandoned_rounds",
}
"""Former names of round policy fields in stored run specifications, and today's names."""
RESTORE = "keep the folder as it is, and restore a backup: fedserver restore BACKUP --state DIR"


class Database:
    """One connection, for one thread.

    Raises DiskFull if the disk is full, StorageFault for other disk errors.
    """

    def __init__(self, path: Path) -> None:
        self.connection = connect(path)
        self._after_commit: dict[Callable[[], None], None] = {}

    def close(self) -> None:
        self.connection.close()

    def execute(self, statement: str, values: Sequence[object] = ()) -> None:
        """Inside a transaction: change rows."""
        self.connection.execute(statement, values)

    def query(self, query: str, values: Sequence[object] = ()) -> list[sqlite3.Row]:
        with _faults():
            cursor = self.connection.cursor()
            cursor.row_factory = sqlite3.Row
            return cursor.execute(query, values).fetchall()

    def after_commit(self, action: Callable[[], None]) -> None:
        """Inside a transaction: call `action` once its rows are on disk, and not at all if it is rolled
        back."""
        self._after_commit[action] = None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all changes of the block together, or none of them; they are on disk at its end."""
        self._after_commit.clear()
        with _faults():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:  # a full disk can have ended it already
                    self.connection.execute("ROLLBACK")
                raise
        for action in tuple(self._after_commit):
            action()


@contextmanager
def _faults() -> Iterator[None]:
    """Turn SQLite's errors into StorageFault, or into DiskFull if the disk is full."""
    try:
        yield
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            raise DiskFull(f"shoal.db: {error}", "free some space on the disk of the state folder") from error
        raise StorageFault(f"shoal.db: {error}", "check the disk of the state folder") from error


def connect(path: Path) -> sqlite3.Connection:
    """Open the database at `path`; create it if it is new, and migrate it if an older version wrote it.

    A commit is on disk when it returns. The database from before a migration stays beside it, as
    shoal.db.version-N. Raises ConfigError if a newer version wrote it, StorageFault if it cannot be read.
    """
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "busy_timeout=5000"):
            connection.execute(f"PRAGMA {pragma}")
        # JSON is rewritten by Python, since SQLite's own functions would round floats to 15 digits.
        connection.create_function("rename_policy_fields", 1, _rename_policy_fields, deterministic=True)
        connection.create_function("payload_to_bytes", 1, _payload_to_bytes, deterministic=True)
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
        raise ConfigError(
            f"{path} has version {found}, but this server reads version {VERSION}", "use a newer fedserver"
        )
    return connection


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Raises StorageFault if pages of the database contradict each other."""
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise StorageFault(f"{path} is damaged: {found}", RESTORE)


def _version(connection: sqlite3.Connection) -> int:
    """The version of the tables; 0 if there are none."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
        return 0
    (found,) = connection.execute("SELECT schema_version FROM meta").fetchone()
    return int(found)


def _back_up(connection: sqlite3.Connection, copy: Path) -> None:
    """Copy the whole database to the file `copy`, which appears only when it is complete."""
    with temporary(copy.parent, 0o600) as file:
        with closing(sqlite3.connect(file.name)) as target:
            connection.backup(target)
        settle(file, copy)


def _rename_policy_fields(spec: str) -> str:
    """A stored run specification, with today's names of its policy's fields."""
    stored = json.loads(spec)
    policy = stored["value"]["policy"]
    stored["value"]["policy"] = {POLICY_FIELDS.get(name, name): value for name, value in policy.items()}
    return json.dumps(stored, sort_keys=True)


def _payload_to_bytes(stored: str) -> bytes:
    """The wire bytes of a report's payload, which earlier versions stored as JSON."""

    def no_tensors(weights: object) -> Any:
        raise TypeError("a payload holds no tensors, only references to blobs")

    return payload_to_bytes(decode(Payload, json.loads(stored), no_tensors))
