"""The tables, as the steps that made them. The SQL of a released step never changes.

It is written for SQLite; `translation` makes of it what PostgreSQL understands.
"""

import re

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
ALTER TABLE runs ADD COLUMN memory TEXT NOT NULL DEFAULT '';  -- JSON of round.attendance.Memory
ALTER TABLE runs ADD COLUMN opened REAL NOT NULL DEFAULT 0;   -- when the open round was opened; 0: unknown
"""

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

PAUSES = """
ALTER TABLE runs ADD COLUMN paused TEXT NOT NULL DEFAULT '';  -- why no round opens; empty: not paused
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
"""

MODELS = """
CREATE TABLE placed (                    -- the clusters whose models newcomers have had
    device TEXT NOT NULL,
    day INTEGER NOT NULL,                -- since 1970, UTC
    run TEXT NOT NULL,
    cluster TEXT NOT NULL,
    PRIMARY KEY (device, day, run, cluster)
);
"""

TIMELINE = """
CREATE TABLE timeline (                  -- see fedserver.store.journal.timeline
    run TEXT NOT NULL REFERENCES runs,
    round INTEGER NOT NULL,              -- one that is over
    summary BLOB NOT NULL,               -- the round without its devices, see server_kit/history/packed.py
    devices BLOB NOT NULL,               -- its devices; empty: removed, because the history grew too large
    PRIMARY KEY (run, round)
);
"""

ENDED = """
ALTER TABLE runs ADD COLUMN ended REAL NOT NULL DEFAULT 0;    -- when it was over; 0: it is not, or unknown
"""

NEWCOMERS = """
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
"""

REMOVED = """
CREATE TABLE removed (                   -- the names of runs that were removed, which no other run may have
    run TEXT PRIMARY KEY
);
"""

OPERATORS = """
CREATE TABLE operators (                 -- people who call over the network
    name TEXT PRIMARY KEY,
    role TEXT NOT NULL,
    serial TEXT NOT NULL,                -- of the only certificate that is valid for this name
    spki TEXT NOT NULL,                  -- SHA-256 of its key
    root TEXT NOT NULL,                  -- the root that signed it
    bundle TEXT NOT NULL,                -- JSON: the roots that were sent with it
    issued REAL NOT NULL,
    expires REAL NOT NULL,
    revoked INTEGER NOT NULL
);
"""

RELEASED_IN_SEVERAL = """
CREATE INDEX released_by_device ON released (device, release);
CREATE INDEX released_before_by_device ON released_before (device, release);
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
    CHECKSUMS,
    PAUSES,
    MODELS,
    TIMELINE,
    ENDED,
    NEWCOMERS,
    REMOVED,
    OPERATORS,
    RELEASED_IN_SEVERAL,
)
"""The migrations: step n upgrades version n - 1 to n. The SQL of a released step never changes."""
VERSION = len(STEPS)
TABLES = tuple(
    name
    for name in re.findall(r"CREATE TABLE (\w+) \(", "".join(STEPS))
    if name not in ("meta", "checksums", "commits")
)
"""The tables that hold what the server knows, each after those that it refers to."""
