"""Reports of devices, as they came, until the round that counts them is saved."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from fedserver.store.content.blobs import Blobs, References
from fedserver.store.database import Database, Row
from fedserver.store.history import History
from fedserver.store.records import ReportRecord
from shoal.core.errors import DiskFull, NotFound, Taken
from shoal.core.types import Bytes, DeviceId, RunId
from shoal.shell import crash

REPORT = "WHERE run = ? AND round = ? AND device = ?"


@dataclass(frozen=True)
class Arrival:
    """A report that is about to be stored.

    blobs: the names of its blobs. inline: the bytes of those that came inside of it, which match their names;
    the others were uploaded.
    """

    record: ReportRecord
    blobs: tuple[str, ...]
    inline: Mapping[str, Bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, record: ReportRecord) -> "Arrival":
        """A report all of whose blobs were uploaded."""
        return cls(record, record.blobs)

    @property
    def uploaded(self) -> list[str]:
        return [name for name in self.blobs if name not in self.inline]


class Reports:
    """The reports of all rounds whose checkpoints are kept."""

    def __init__(self, database: Database, blobs: Blobs, references: References, history: History) -> None:
        self._db, self._blobs, self._references, self._history = database, blobs, references, history

    def add(self, arrivals: Sequence[Arrival]) -> None:
        """Store reports, which count from then on.

        All of them share one sync of what they carry, and one commit. Raises NotFound if the blobs of one
        have not arrived, Taken if a report of the same device and round counts already, DiskFull. Then none
        of them counts, and the uploads that arrived are still there.
        """
        names = {name for arrival in arrivals for name in arrival.blobs}
        try:
            self._blobs.put({name: data for arrival in arrivals for name, data in arrival.inline.items()})
            for arrival in arrivals:
                self._blobs.accept(arrival.record.device, arrival.uploaded)
            crash.point("server.report-blobs-moved")
            self._insert(arrivals)
        except (NotFound, Taken, DiskFull):
            self._references.remove_unneeded(names)
            raise
        with suppress(DiskFull):  # as in References.remove_unneeded
            for arrival in arrivals:
                self._blobs.discard(arrival.record.device, arrival.blobs)

    def _insert(self, arrivals: Sequence[Arrival]) -> None:
        with self._db.transaction():
            for arrival in arrivals:
                report = arrival.record
                key = (report.run, report.round, report.device)
                if self._db.query(f"SELECT 1 FROM reports {REPORT}", key):  # noqa: S608
                    raise Taken(f"a report of device {report.device} counts already", "ask for the next task")
                self._db.execute(
                    "INSERT INTO reports (run, round, device, attempt, message) VALUES (?, ?, ?, ?, ?)",
                    (*key, report.attempt, report.data),
                )
                for name in set(arrival.blobs):
                    self._db.execute(
                        "INSERT INTO report_blobs (run, round, device, sha256) VALUES (?, ?, ?, ?)",
                        (*key, name),
                    )
            self._history.advance()
            crash.point("server.report-committing")

    def of_round(self, run: RunId, round: int) -> list[ReportRecord]:
        """The reports of a round that count, sorted by device. Their blobs exist until the round is saved."""
        rows = self._db.rows("reports", "WHERE run = ? AND round = ? ORDER BY device", (run, round))
        return [_report_of(row) for row in rows]

    def withdraw(self, run: RunId, round: int, device: DeviceId) -> None:
        """Remove a report whose blobs are damaged, so that it no longer counts."""
        names = self._blobs_of(REPORT, (run, round, device))
        with self._db.transaction():
            self._db.execute(f"DELETE FROM reports {REPORT}", (run, round, device))  # noqa: S608
        self._references.remove_unneeded(names)

    def forget(self, device: DeviceId) -> set[str]:
        """Inside a transaction: delete all reports of a device. Returns the blobs that they had."""
        names = self._blobs_of("WHERE device = ?", (device,))
        self._db.execute("DELETE FROM reports WHERE device = ?", (device,))
        return names

    def _blobs_of(self, which: str, values: Sequence[object]) -> set[str]:
        return {name for (name,) in self._db.query(f"SELECT sha256 FROM report_blobs {which}", values)}  # noqa: S608

    def get(self, run: RunId, round: int, device: DeviceId) -> ReportRecord | None:
        """A device's report in a round, if it counts."""
        rows = self._db.rows("reports", REPORT, (run, round, device))
        return _report_of(rows[0]) if rows else None


def _report_of(row: Row) -> ReportRecord:
    return ReportRecord(row["run"], row["round"], row["device"], row["attempt"], row["message"])
