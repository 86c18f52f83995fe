"""The tables, as they are made in a new database, and the version that a database of theirs has.

The SQL is written for SQLite; `translation` makes of it what PostgreSQL understands. A change of the tables
raises `VERSION`: a database of another version is refused.
"""

import re

from shoal.core.errors import ConfigError

VERSION = 3

RUNS = """
CREATE TABLE runs (
    run TEXT PRIMARY KEY,
    spec TEXT NOT NULL,                  -- JSON
    created REAL NOT NULL,
    standing TEXT NOT NULL,
    reason TEXT NOT NULL,
    round INTEGER NOT NULL,              -- the one that is open, or will open next
    asked TEXT NOT NULL,                 -- JSON; empty while no round is open
    title TEXT NOT NULL,
    abandoned_in_a_row INTEGER NOT NULL,
    memory TEXT NOT NULL,                -- JSON of round.attendance.Memory
    opened REAL NOT NULL,                -- when the latest round was opened; 0: none was
    paused TEXT NOT NULL,                -- why no round opens; empty: not paused
    ended REAL NOT NULL                  -- when it was over; 0: it is not
);
CREATE TABLE removed (                   -- the names of runs that were removed, which no other run may have
    run TEXT PRIMARY KEY
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
    message BLOB NOT NULL,               -- as on the wire
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

CREATE TABLE model_releases (            -- see fedserver.store.releases
    release TEXT PRIMARY KEY,            -- RUN@LABEL
    run TEXT NOT NULL REFERENCES runs,
    card TEXT NOT NULL,                  -- JSON; its bytes are signed
    structure TEXT NOT NULL,             -- JSON of the state, as in checkpoints
    authority TEXT NOT NULL,             -- whose key signed the card; empty: without certificates
    signature BLOB NOT NULL
);
CREATE TABLE release_blobs (
    release TEXT NOT NULL REFERENCES model_releases ON DELETE CASCADE,
    run TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    PRIMARY KEY (release, sha256)
);
CREATE INDEX release_blobs_by_name ON release_blobs (sha256);
CREATE TABLE channels (                  -- what each was given; its last row counts
    number INTEGER PRIMARY KEY,
    channel TEXT NOT NULL,
    release TEXT NOT NULL,               -- empty: none any more
    pinned INTEGER NOT NULL,             -- 1: it does not move by itself
    at REAL NOT NULL,
    why TEXT NOT NULL
);
CREATE TABLE rollouts (                  -- see fedserver.store.rollouts
    rollout TEXT PRIMARY KEY,            -- a random name
    channel TEXT NOT NULL,
    old_release TEXT NOT NULL,
    new_release TEXT NOT NULL,
    share REAL NOT NULL,                 -- of the devices, above 0 and at most 1
    margin REAL NOT NULL,                -- by how much the accuracy may be lower in a cluster
    pinned INTEGER NOT NULL,             -- as in channels, once it has the new release
    began REAL NOT NULL,
    ended REAL NOT NULL,                 -- 0: it goes on
    outcome TEXT NOT NULL,               -- promoted, stopped or withdrawn; empty: it goes on
    why TEXT NOT NULL
);
CREATE TABLE rollout_counts (
    rollout TEXT NOT NULL REFERENCES rollouts ON DELETE CASCADE,
    device TEXT NOT NULL,
    cluster TEXT NOT NULL,               -- of the old release
    predictions INTEGER NOT NULL,
    agreed INTEGER NOT NULL,
    labeled INTEGER NOT NULL,
    old_right INTEGER NOT NULL,
    new_right INTEGER NOT NULL,
    both_right INTEGER NOT NULL,
    PRIMARY KEY (rollout, device)
);

CREATE VIEW needed_blobs AS
    SELECT run, sha256 FROM checkpoint_blobs UNION ALL SELECT run, sha256 FROM report_blobs
    UNION ALL SELECT run, sha256 FROM release_blobs;
"""

JOURNAL = """
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

CREATE TABLE timeline (                  -- see fedserver.store.journal.timeline
    run TEXT NOT NULL REFERENCES runs,
    round INTEGER NOT NULL,              -- one that is over
    summary BLOB NOT NULL,               -- the round without its devices, see server_kit/history/packed.py
    devices BLOB NOT NULL,               -- its devices; empty: removed, because the history grew too large
    PRIMARY KEY (run, round)
);

CREATE TABLE newcomers (                 -- see fedserver.store.journal.placements
    number INTEGER PRIMARY KEY,          -- grows with each answer
    run TEXT NOT NULL REFERENCES runs,
    device TEXT NOT NULL,
    evidence TEXT NOT NULL,
    outcome TEXT NOT NULL,
    cluster TEXT NOT NULL,               -- empty where the server does not know
    runner_up TEXT NOT NULL,
    confidence REAL,
    reason TEXT NOT NULL,
    models TEXT NOT NULL,                -- JSON: the clusters whose models it was given
    progress INTEGER NOT NULL,           -- the rounds of training that were complete
    since REAL NOT NULL,
    at REAL NOT NULL,
    times INTEGER NOT NULL
);
CREATE INDEX newcomers_by_run ON newcomers (run, device, number);

CREATE TABLE watched (                   -- see fedserver.store.journal.watched
    run TEXT NOT NULL REFERENCES runs,
    subject TEXT NOT NULL,               -- the release, or else the run, whose models devices have
    cluster TEXT NOT NULL,               -- empty: of devices that chose by themselves
    day INTEGER NOT NULL,                -- since 1970, UTC
    answers INTEGER NOT NULL,
    moved INTEGER NOT NULL,              -- how many of them say so, as randomized
    PRIMARY KEY (subject, cluster, day)
);
CREATE TABLE answered (                  -- when each device has said something last
    device TEXT PRIMARY KEY,
    day INTEGER NOT NULL
);

CREATE TABLE released (
    run TEXT NOT NULL REFERENCES runs,
    device TEXT NOT NULL,
    release TEXT NOT NULL,               -- SHA-256; or, without a guarantee, its kind
    rho REAL NOT NULL,                   -- for one sample; 0 without a guarantee
    delta REAL NOT NULL,
    group_size INTEGER NOT NULL,
    curve BLOB NOT NULL,                 -- float64, see privacy/cost.py
    PRIMARY KEY (run, device, release)
);
CREATE INDEX released_by_device ON released (device, release);
CREATE TABLE released_before (           -- what devices released in runs that were removed: as in released
    run TEXT NOT NULL,
    device TEXT NOT NULL,
    release TEXT NOT NULL,
    rho REAL NOT NULL,
    delta REAL NOT NULL,
    group_size INTEGER NOT NULL,
    curve BLOB NOT NULL,
    PRIMARY KEY (run, device, release)
);
CREATE INDEX released_before_by_device ON released_before (device, release);
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
    role TEXT NOT NULL,
    labels TEXT NOT NULL,                -- JSON
    standing TEXT NOT NULL,
    created REAL NOT NULL,
    spki TEXT NOT NULL UNIQUE,           -- SHA-256 of its key
    token TEXT NOT NULL                  -- that admitted it; empty: see Successor in identities.records
);
CREATE TABLE successors (                -- keys that wait to take the place of the one that a device has
    device TEXT PRIMARY KEY REFERENCES identities,
    spki TEXT NOT NULL UNIQUE,
    role TEXT NOT NULL,
    labels TEXT NOT NULL,                -- JSON
    token TEXT NOT NULL,
    created REAL NOT NULL
);
CREATE TABLE dead_keys (                 -- see fedserver.store.identities.dead_keys
    spki TEXT PRIMARY KEY,
    name TEXT NOT NULL                   -- of the device or operator
);
CREATE TABLE placements (
    device TEXT NOT NULL,
    day INTEGER NOT NULL,                -- since 1970, UTC
    count INTEGER NOT NULL,
    PRIMARY KEY (device, day)
);
CREATE TABLE placed (                    -- the clusters whose models newcomers have had
    device TEXT NOT NULL,
    day INTEGER NOT NULL,                -- since 1970, UTC
    run TEXT NOT NULL,
    cluster TEXT NOT NULL,
    PRIMARY KEY (device, day, run, cluster)
);
CREATE TABLE operators (                 -- people who call over the network
    name TEXT PRIMARY KEY,
    role TEXT NOT NULL,
    spki TEXT NOT NULL,                  -- SHA-256 of the only key that is valid for this name
    created REAL NOT NULL,
    revoked INTEGER NOT NULL
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

META = f"""
CREATE TABLE meta (schema_version INTEGER NOT NULL);
INSERT INTO meta VALUES ({VERSION});
"""  # noqa: S608 - a number of ours
SCHEMA = META + RUNS + JOURNAL + IDENTITIES + HISTORY
TABLES = tuple(name for name in re.findall(r"CREATE TABLE (\w+) \(", SCHEMA) if name != "meta")
"""The tables that hold what the server knows, each after those that it refers to."""
EXPENDABLE = frozenset(re.findall(r"CREATE TABLE (\w+) \(", JOURNAL)) - {"timeline"} | {"epoch"}
"""The tables in which a row that cannot be restored is removed: operators read them, and no run depends on
them. A history that lacks a round would say of a model that it was made without a device. An epoch that is
lost is replaced, see `fedserver.store.history`."""

CHECKSUMS = """
CREATE TABLE checksums (                 -- of each row of the other tables, see integrity.redundancy
    tbl TEXT NOT NULL,
    row INTEGER NOT NULL,
    sum BLOB NOT NULL,
    PRIMARY KEY (tbl, row)
) WITHOUT ROWID;
CREATE TABLE commits (
    number INTEGER NOT NULL              -- of the last transaction; no row: there are no checksums yet
);
"""
"""Only in SQLite: these two are about the rows of the file."""


def check_version(found: int, database: str) -> None:
    """Raises ConfigError if another version of the server made the tables. database: its name, for people."""
    if found != VERSION:
        raise ConfigError(
            f"{database} has version {found} of the tables, but this server reads version {VERSION}",
            "use the version of fedserver that it was made with, or an empty state folder",
        )
