"""Records that operators read: devices, traffic, releases and the log of each run. No run depends on them."""

import time
from collections.abc import Iterable
from contextlib import suppress

import numpy as np

from fedserver.store.database import Database, Row, record_of
from fedserver.store.identities.records import DeviceStanding
from fedserver.store.integrity.redundancy import DamagedRow
from fedserver.store.journal.placements import Placements
from fedserver.store.journal.timeline import Timeline
from fedserver.store.journal.watched import Watched
from fedserver.store.records import DeviceRecord, LogLine, ReleaseRecord, Traffic
from shoal.core.identity.joining import Role
from shoal.core.types import DeviceId, RunId

LOG_LINES, PAGE = 10_000, 200
"""How many lines of a run's log are kept, and how many are read at a time."""
RELEASED = "run, device, release, rho, delta, group_size, curve"
"""The columns of the two tables of releases."""
RELEASES, MORE = 10_000, "more than is counted here"
"""How many releases of one device are recorded for one run: an honest device makes at most one per round."""


class Journal:
    """Which devices called, how many bytes they transferred, what they released, and what happened in each
    run. timeline: the rounds of each run. placements: what newcomers were answered. watched: what devices
    say of their data."""

    def __init__(self, database: Database) -> None:
        self._db, self.timeline, self.placements = database, Timeline(database), Placements(database)
        self.watched = Watched(database)

    def note_devices(self, devices: Iterable[DeviceRecord]) -> None:
        """Update the records of these devices."""
        with self._db.transaction():
            self._db.execute_many(
                "INSERT INTO devices (device, software, first_seen, last_seen) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (device)"
                " DO UPDATE SET software = excluded.software, last_seen = excluded.last_seen",
                [(each.device, each.software, each.first_seen, each.last_seen) for each in devices],
            )

    def devices(self) -> list[DeviceRecord]:
        """Every device that has ever called, sorted by name."""
        return [record_of(DeviceRecord, row) for row in self._db.rows("devices", "ORDER BY device")]

    def trainers(self) -> list[DeviceId]:
        """Devices that may take part in runs: those admitted to train, and all that have called without
        TLS."""
        rows = self._db.query(
            "SELECT device FROM identities WHERE role = ? AND standing = ? UNION"
            " SELECT device FROM devices WHERE device NOT IN (SELECT device FROM identities)",
            (Role.TRAIN.value, DeviceStanding.APPROVED.value),
        )
        return [device for (device,) in rows]

    def standings(self) -> dict[DeviceId, DeviceStanding]:
        """Of each device that has joined; none on a server without certificates. One whose row is damaged and
        cannot be restored is left out."""
        query = "SELECT device, standing FROM identities ORDER BY device"
        words = {each.value: each for each in DeviceStanding}
        rows = list(self._db.query(query))
        if any(standing not in words for _, standing in rows):
            with suppress(DamagedRow):
                self._db.rows("identities")  # which restores what is damaged
            rows = list(self._db.query(query))
        return {device: words[standing] for device, standing in rows if standing in words}

    def runs_of(self, device: DeviceId) -> set[RunId]:
        """The runs in which a device has released anything, with a guarantee or without."""
        return {
            run for (run,) in self._db.query("SELECT DISTINCT run FROM released WHERE device = ?", (device,))
        }

    def add_traffic(self, traffic: Iterable[Traffic]) -> None:
        """Add these bytes to what the devices have sent and fetched, in runs that were not removed since."""
        with self._db.transaction():
            self._db.execute_many(
                "INSERT INTO traffic (run, device, up, down) SELECT ?1, ?2, ?3, ?4"
                " WHERE EXISTS (SELECT 1 FROM runs WHERE run = ?1) ON CONFLICT (run, device)"
                " DO UPDATE SET up = traffic.up + excluded.up, down = traffic.down + excluded.down",
                [(each.run, each.device, each.up, each.down) for each in traffic],
            )

    def traffic(self, run: RunId) -> list[Traffic]:
        """How many bytes each device has sent and fetched in a run."""
        rows = self._db.rows("traffic", "WHERE run = ? ORDER BY device", (run,))
        return [record_of(Traffic, row) for row in rows]

    def note_releases(self, releases: Iterable[ReleaseRecord]) -> None:
        """Record each release once; beyond `RELEASES`, record only that there are more. That of a run that
        was removed meanwhile counts with those of removed runs."""
        with self._db.transaction():
            for each in releases:
                is_there = self._db.query("SELECT 1 FROM runs WHERE run = ?", (each.run,))
                table = "released" if is_there else "released_before"
                curve = np.asarray(each.curve, "<f8").tobytes()
                row = (each.run, each.device, each.release, each.rho, each.delta, each.group_size, curve)
                self._db.execute(
                    f"INSERT INTO {table} ({RELEASED}) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7"  # noqa: S608 - ours
                    f" WHERE (SELECT count(*) FROM {table} WHERE run = ?1 AND device = ?2) < ?8"
                    " ON CONFLICT DO NOTHING",
                    (*row, RELEASES),
                )
                self._db.execute(
                    f"INSERT INTO {table} ({RELEASED}) SELECT ?1, ?2, ?4, 0, 0, 1, ?5 WHERE NOT EXISTS"  # noqa: S608
                    f" (SELECT 1 FROM {table} WHERE run = ?1 AND device = ?2 AND release = ?3)"
                    " ON CONFLICT DO NOTHING",
                    (each.run, each.device, each.release, MORE, b""),
                )

    def log(self, run: RunId, text: str, device: DeviceId = "") -> None:
        """Add a line to the log of a run."""
        with self._db.transaction():
            add_lines(self._db, run, (text,), device)

    def log_lines(self, run: RunId, after: int = 0) -> list[LogLine]:
        """One page of the lines of a run's log whose numbers are above `after`."""
        rows = self._db.rows(
            "log", "WHERE run = ? AND number > ? ORDER BY number LIMIT ?", (run, after, PAGE)
        )
        return [record_of(LogLine, row) for row in rows]


def add_lines(database: Database, run: RunId, texts: Iterable[str], device: DeviceId = "") -> None:
    """Inside a transaction: add lines to the log of a run; none if it was removed since."""
    if not database.query("SELECT 1 FROM runs WHERE run = ?", (run,)):
        return
    for text in texts:
        database.execute(
            "INSERT INTO log (number, run, at, device, text)"
            " SELECT coalesce(max(number), 0) + 1, ?, ?, ?, ? FROM log",
            (run, time.time(), device, text),
        )
    database.execute(
        "DELETE FROM log WHERE run = ?1 AND number <="
        " (SELECT number FROM log WHERE run = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?2)",
        (run, LOG_LINES),
    )


def release_of(row: Row) -> ReleaseRecord:
    """A row of a table of releases."""
    return record_of(ReleaseRecord, row, curve=tuple(np.frombuffer(row["curve"], "<f8").tolist()))
