"""Reports of devices, as they came, until the round that counts them is saved."""

from contextlib import suppress

from fedserver.store.content.blobs import Blobs, References
from fedserver.store.database import Database, Row
from fedserver.store.history import History
from fedserver.store.integrity.records import ReportRecord
from shoal.core.errors import DiskFull, NotFound
from shoal.core.types import DeviceId, RunId
from shoal.shell import crash


class Reports:
    """The reports of all rounds whose checkpoints are kept."""

    def __init__(self, database: Database, blobs: Blobs, references: References, history: History) -> None:
        self._db, self._blobs, self._references, self._history = database, blobs, references, history

    def add(self, report: ReportRecord) -> None:
        """Store a report, which counts from then on. Raises NotFound if its blobs have not arrived.

        After NotFound or DiskFull it does not count, and the uploads that arrived are still there.
        """
        try:
            self._blobs.accept(report.device, report.blobs)
            crash.point("server.report-blobs-moved")
            self._insert(report)
        except (NotFound, DiskFull):
            self._references.remove_unneeded(set(report.blobs))
            raise
        with suppress(DiskFull):  # as in References.remove_unneeded
            self._blobs.discard(report.device, report.blobs)

    def _insert(self, report: ReportRecord) -> None:
        key = (report.run, report.round, report.device)
        with self._db.transaction():
            self._db.execute(
                "INSERT INTO reports (run, round, device, attempt, message) VALUES (?, ?, ?, ?, ?)",
                (
                    *key,
                    report.attempt,
                    report.data,
                ),
            )
            for name in set(report.blobs):
                self._db.execute(
                    "INSERT INTO report_blobs (run, round, device, sha256) VALUES (?, ?, ?, ?)", (*key, name)
                )
            self._history.advance()
            crash.point("server.report-committing")

    def of_round(self, run: RunId, round: int) -> list[ReportRecord]:
        """The reports of a round that count, sorted by device. Their blobs exist until the round is saved."""
        rows = self._db.rows("reports", "WHERE run = ? AND round = ? ORDER BY device", (run, round))
        return [_report_of(row) for row in rows]

    def withdraw(self, run: RunId, round: int, device: DeviceId) -> None:
        """Remove a report whose blobs are damaged, so that it no longer counts."""
        with self._db.transaction():
            self._db.execute(
                "DELETE FROM reports WHERE run = ? AND round = ? AND device = ?", (run, round, device)
            )

    def get(self, run: RunId, round: int, device: DeviceId) -> ReportRecord | None:
        """A device's report in a round, if it counts."""
        rows = self._db.rows("reports", "WHERE run = ? AND round = ? AND device = ?", (run, round, device))
        return _report_of(rows[0]) if rows else None

    def rounds_of(self, run: RunId, device: DeviceId) -> list[int]:
        """The rounds of a run, among those still stored, in which a report of the device counts."""
        query = "SELECT round FROM reports WHERE run = ? AND device = ? ORDER BY round"
        return [number for (number,) in self._db.query(query, (run, device))]


def _report_of(row: Row) -> ReportRecord:
    return ReportRecord(row["run"], row["round"], row["device"], row["attempt"], row["message"])
