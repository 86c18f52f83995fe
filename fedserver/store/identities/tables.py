"""The tables of the audit log, tokens, devices and certificates: steps of `fedserver.store.schema`."""

TABLES = """
CREATE TABLE audit (
    number INTEGER PRIMARY KEY,          -- from 1, without a gap
    line TEXT NOT NULL                   -- see fedserver.authority.audit
);
CREATE TABLE tokens (
    token TEXT PRIMARY KEY,
    key BLOB NOT NULL,                   -- SHA-256 of the secret, which is kept nowhere
    role TEXT NOT NULL,
    uses INTEGER NOT NULL,
    used INTEGER NOT NULL,
    created REAL NOT NULL,
    expires REAL NOT NULL,
    labels TEXT NOT NULL,                -- JSON
    pattern TEXT NOT NULL,
    hold INTEGER NOT NULL,
    wrong INTEGER NOT NULL,              -- proofs that were
    standing TEXT NOT NULL
);
CREATE TABLE identities (
    device TEXT PRIMARY KEY,
    display TEXT NOT NULL,
    role TEXT NOT NULL,
    labels TEXT NOT NULL,                -- JSON
    standing TEXT NOT NULL,
    created REAL NOT NULL,
    spki TEXT NOT NULL,                  -- of the key that it joined with
    token TEXT NOT NULL REFERENCES tokens
);
CREATE TABLE certificates (
    number INTEGER PRIMARY KEY,          -- in the order in which they were issued
    device TEXT NOT NULL REFERENCES identities,
    serial TEXT NOT NULL UNIQUE,
    spki TEXT NOT NULL UNIQUE,           -- one key, one certificate
    pem BLOB NOT NULL,
    root TEXT NOT NULL,                  -- that signed
    bundle TEXT NOT NULL,                -- JSON: the roots that were handed out with it
    issued REAL NOT NULL,
    expires REAL NOT NULL,
    first_used REAL,
    void INTEGER NOT NULL                -- a later one was used, or issued before this one was used
);
CREATE INDEX certificates_by_device ON certificates (device);
CREATE TABLE placements (
    device TEXT NOT NULL,
    day INTEGER NOT NULL,                -- since 1970, UTC
    count INTEGER NOT NULL,
    PRIMARY KEY (device, day)
);
"""

GAPS = """
CREATE TABLE gaps (                      -- see fedserver.store.identities.restored
    number INTEGER NOT NULL,             -- of the last line of the audit log that is known
    hash TEXT NOT NULL,                  -- of that line
    since REAL NOT NULL,                 -- when that line was written
    until REAL                           -- when the restored state was accepted; NULL: not yet
);
CREATE TABLE reissued (
    device TEXT PRIMARY KEY,
    serial TEXT NOT NULL                 -- of the last certificate that a log, and no row, tells of
);
"""
