"""The state folder: what a run has come to is here before anybody is told of it.

shoal.db   the database, one transaction for each transition     lock   held while a server uses the folder
blobs/ partial/ tmp/   see `fedserver.store.blobs`

A blob is on the disk before a row speaks of it, and a row is gone before its blob is. So a crash between any
two steps leaves at most bytes that nobody needs; `scrub` removes those. Nothing here is asynchronous, and
one thread makes all calls.
"""

import json
import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedserver.authority.audit import Event
from fedserver.store.blobs import Blobs
from fedserver.store.history import Epoch
from fedserver.store.identities.admission import Admissions
from fedserver.store.journal import Notes
from fedserver.store.records import ReportRecord, RoundRecord, RunRecord, RunSpec, Standing
from shoal.core.engine.checkpoint import Structure, blobs_of, decode, encode
from shoal.core.errors import DiskFull, NotFound
from shoal.core.exchange.payload import Payload, Weights
from shoal.core.types import DeviceId, RunId, Tensors
from shoal.shell import crash, disk

LOCK = "lock"
"""The file in the state folder that a server locks while it uses the folder, with its process number."""
VERSIONS = 5
"""How many checkpoints of a run are kept: whoever still fetches a model of an earlier round can finish,
and an operator can go back to one."""


class Store(Notes, Admissions, Epoch):
    """One state folder. Raises StorageFault when the disk refuses: then only a restart knows what holds."""

    def __init__(self, state: Path) -> None:
        with disk.storing(state):
            disk.make_folder(state)
            self._lock = disk.lock(state / LOCK)
        try:
            self.blobs = Blobs(state)
            super().__init__(state / "shoal.db")
        except BaseException:
            self._lock.close()
            raise
        self._held: dict[RunId, set[str]] = {}

    def close(self) -> None:
        super().close()
        self._lock.close()

    def scrub(self) -> str:
        """Remove what a crash left behind, and say what it was; "" when there was nothing."""
        needed = {name for (name,) in self._all("SELECT sha256 FROM needed_blobs")}
        asked = [device for record in self.runs() for device in record.asked]
        files, size = self.blobs.scrub(needed, asked)
        return f"removed {files} files of {size} bytes that a stop had left unfinished" if files else ""

    # -- runs -----------------------------------------------------------------------------------------------

    def keep(self, run: RunId, tensors: Tensors) -> Weights:
        """Store tensors for a run's tasks. They stay until its next round, longer if that refers to them."""
        weights = self.blobs.keep(tensors)
        self._held.setdefault(run, set()).add(weights.blob.sha256)
        return weights

    def adopt(self, run: RunId, owner: DeviceId, weights: Weights) -> None:
        """Make an upload of `owner` a blob that stays as with `keep`. Raises NotFound if it never arrived."""
        name = weights.blob.sha256
        self._held.setdefault(run, set()).add(name)
        self.blobs.accept(owner, [name])
        self.blobs.discard(owner, [name])

    def let_go(self, run: RunId) -> None:
        """What was kept or adopted for this run and did not come into a checkpoint is not needed."""
        self._remove_unneeded(self._held.pop(run, set()))

    def add_run(self, record: RunRecord, checkpoint: Structure) -> None:
        """A new run, that starts with `checkpoint`."""
        with self._transaction():
            self._run(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    record.run,
                    _json(RunSpec, record.spec),
                    record.created,
                    record.standing.value,
                    record.reason,
                    record.round,
                    json.dumps(record.asked),
                    record.title,
                    record.abandoned_in_a_row,
                ),
            )
            self._add_checkpoint(record.run, record.round, checkpoint)
            self._advance()
            self._audit(Event.RUN_STARTED, run=record.run, algorithm=record.spec.algorithm)

    def runs(self) -> list[RunRecord]:
        """All runs, oldest first."""
        rows = self._all("SELECT * FROM runs ORDER BY rowid")
        return [
            RunRecord(
                row["run"],
                decode(RunSpec, json.loads(row["spec"]), _no_tensors),
                row["created"],
                Standing(row["standing"]),
                row["reason"],
                row["round"],
                tuple(json.loads(row["asked"])),
                row["title"],
                row["abandoned_in_a_row"],
            )
            for row in rows
        ]

    def checkpoint(self, run: RunId, round: int | None = None) -> Structure:
        """What a round of a run opens, or opened, with: the current one, or another of `versions`."""
        (row,) = self._all(
            "SELECT structure FROM checkpoints WHERE run = ?1 AND round = coalesce(?2,"
            " (SELECT max(round) FROM checkpoints WHERE run = ?1))",
            (run, round),
        )
        structure: Structure = json.loads(row["structure"])
        return structure

    def checkpoints(self, run: RunId) -> list[tuple[int, list[str]]]:
        """The rounds that a checkpoint of this run opens, newest first, each with the blobs that it needs."""
        rounds = self._all("SELECT round FROM checkpoints WHERE run = ? ORDER BY round DESC", (run,))
        query = "SELECT sha256 FROM checkpoint_blobs WHERE run = ? AND round = ? ORDER BY sha256"
        return [(number, [name for (name,) in self._all(query, (run, number))]) for (number,) in rounds]

    def drop_checkpoint(self, run: RunId, round: int) -> None:
        """A checkpoint that cannot be used. If it was the newest, the run goes back to the one before it."""
        with self._transaction():
            self._run("DELETE FROM checkpoints WHERE run = ? AND round = ?", (run, round))
            ((last,),) = self._all("SELECT max(round) FROM checkpoints WHERE run = ?", (run,))
            if last is not None and last < round:
                self._run(
                    "UPDATE runs SET round = ?, asked = '[]', title = '' WHERE run = ? AND round > ?",
                    (last, run, last),
                )
                self._run("DELETE FROM reports WHERE run = ? AND round >= ?", (run, last))
                self._run("DELETE FROM rounds WHERE run = ? AND round >= ?", (run, last))

    def versions(self, run: RunId) -> list[int]:
        """The rounds of a run whose checkpoints are kept, oldest first; the last is the current one."""
        rows = self._all("SELECT round FROM checkpoints WHERE run = ? ORDER BY round", (run,))
        return [number for (number,) in rows]

    def open_round(self, run: RunId, asked: Sequence[DeviceId], title: str) -> None:
        """The run's current round asks these devices."""
        with self._transaction():
            self._run("UPDATE runs SET asked = ?, title = ? WHERE run = ?", (json.dumps(asked), title, run))

    def save_round(
        self, run: RunId, closed: RoundRecord, checkpoint: Structure, abandoned_in_a_row: int
    ) -> None:
        """A round is over, and the next one will open with `checkpoint`."""
        following, oldest = closed.round + 1, closed.round + 2 - VERSIONS
        with self._transaction():
            self._run(
                "UPDATE runs SET round = ?, asked = '[]', title = '', abandoned_in_a_row = ? WHERE run = ?",
                (following, abandoned_in_a_row, run),
            )
            self._run(
                "INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    run,
                    closed.round,
                    closed.title,
                    closed.asked,
                    closed.reported,
                    json.dumps(dict(closed.missing)),
                    closed.abandoned,
                    closed.seconds,
                ),
            )
            self._add_checkpoint(run, following, checkpoint)
            before = self._blobs_of(run)
            self._run("DELETE FROM checkpoints WHERE run = ? AND round < ?", (run, oldest))
            self._run("DELETE FROM report_blobs WHERE run = ?", (run,))
            self._run("DELETE FROM reports WHERE run = ? AND round < ?", (run, oldest))
            self._advance()
            crash.point("server.round-committing")
        crash.point("server.round-saved")
        self._remove_unneeded(before | self._held.pop(run, set()))

    def end_run(self, run: RunId, standing: Standing, reason: str) -> None:
        """A run is over. Its last checkpoint stays."""
        with self._transaction():
            self._run(
                "UPDATE runs SET standing = ?, reason = ?, asked = '[]' WHERE run = ?",
                (standing.value, reason, run),
            )
            self._audit(Event.RUN_ENDED, run=run, standing=standing.value, reason=reason)
            before = self._blobs_of(run)
            self._run("DELETE FROM report_blobs WHERE run = ?", (run,))
        self._remove_unneeded(before | self._held.pop(run, set()))

    def recover(self) -> list[RunId]:
        """Accept this state as the one to go on from; the runs whose open rounds are abandoned for it.

        Safe to repeat when it was cut off: what it decides comes last.
        """
        doubted, found = ", ".join(self.doubts()), []
        said = "the state that was restored is accepted"
        said += f", though others saw more: {doubted}" if doubted else ""
        for record in self.runs():
            if record.standing is Standing.ACTIVE:
                self.log(record.run, said)
            if record.asked:
                why = "the server was restored from the past"
                reported = len(self.reports(record.run, record.round))
                closed = RoundRecord(record.round, record.title, len(record.asked), reported, {}, why, 0.0)
                self.save_round(record.run, closed, self.checkpoint(record.run), record.abandoned_in_a_row)
                found.append(record.run)
        self.accept_gap()
        self.accept()
        return found

    def rounds(self, run: RunId) -> list[RoundRecord]:
        """The rounds that are over, oldest first."""
        rows = self._all("SELECT * FROM rounds WHERE run = ? ORDER BY round", (run,))
        return [
            RoundRecord(
                row["round"],
                row["title"],
                row["asked"],
                row["reported"],
                json.loads(row["missing"]),
                row["abandoned"],
                row["seconds"],
            )
            for row in rows
        ]

    # -- reports --------------------------------------------------------------------------------------------

    def add_report(self, report: ReportRecord) -> None:
        """A report counts from here on. Raises NotFound when its blobs have not arrived.

        After NotFound or DiskFull it does not count; those of its blobs that arrived are still there.
        """
        try:
            self.blobs.accept(report.device, report.blobs)
            crash.point("server.report-blobs-moved")
            self._add_report(report)
        except (NotFound, DiskFull):
            self._remove_unneeded(set(report.blobs))
            raise
        with suppress(DiskFull):  # as in _remove_unneeded
            self.blobs.discard(report.device, report.blobs)

    def _add_report(self, report: ReportRecord) -> None:
        key = (report.run, report.round, report.device)
        with self._transaction():
            self._run(
                "INSERT INTO reports VALUES (?, ?, ?, ?, ?)",
                (*key, report.attempt, _json(Payload, report.payload)),
            )
            for name in set(report.blobs):
                self._run("INSERT INTO report_blobs VALUES (?, ?, ?, ?)", (*key, name))
            self._advance()
            crash.point("server.report-committing")

    def reports(self, run: RunId, round: int) -> list[ReportRecord]:
        """The reports of a round that count, in device-id order. Blobs are there while the round is."""
        rows = self._all("SELECT * FROM reports WHERE run = ? AND round = ? ORDER BY device", (run, round))
        return [_report_of(row) for row in rows]

    def withdraw(self, run: RunId, round: int, device: DeviceId) -> None:
        """A report does not count any more: its blobs are damaged."""
        with self._transaction():
            self._run("DELETE FROM reports WHERE run = ? AND round = ? AND device = ?", (run, round, device))

    def report(self, run: RunId, round: int, device: DeviceId) -> ReportRecord | None:
        """A device's report in a round, if it counts."""
        rows = self._all(
            "SELECT * FROM reports WHERE run = ? AND round = ? AND device = ?", (run, round, device)
        )
        return _report_of(rows[0]) if rows else None

    # -- inside ---------------------------------------------------------------------------------------------

    def _add_checkpoint(self, run: RunId, round: int, checkpoint: Structure) -> None:
        self._run("INSERT INTO checkpoints VALUES (?, ?, ?)", (run, round, json.dumps(checkpoint)))
        for name in blobs_of(checkpoint):
            self._run("INSERT INTO checkpoint_blobs VALUES (?, ?, ?)", (run, round, name))

    def _blobs_of(self, run: RunId) -> set[str]:
        return {name for (name,) in self._all("SELECT sha256 FROM needed_blobs WHERE run = ?", (run,))}

    def _remove_unneeded(self, names: set[str]) -> None:
        """Delete those of the blobs that no row and no task speaks of any more."""
        held = set().union(*self._held.values())
        query = "SELECT 1 FROM needed_blobs WHERE sha256 = ? LIMIT 1"
        with suppress(DiskFull):  # there are disks where deleting takes room; the next start removes them
            self.blobs.remove(name for name in sorted(names - held) if not self._all(query, (name,)))


def same(first: Payload, second: Payload) -> bool:
    """Whether two payloads say the same, bit by bit."""
    return _json(Payload, first) == _json(Payload, second)


def _no_tensors(tensors: object) -> Any:
    raise TypeError("neither a specification nor a payload holds tensors, only references")


def _json(hint: type, value: object) -> str:
    """The same text for the same value: the order of a mapping means nothing here."""
    return json.dumps(encode(hint, value, _no_tensors), sort_keys=True)


def _report_of(row: sqlite3.Row) -> ReportRecord:
    payload = decode(Payload, json.loads(row["payload"]), _no_tensors)
    return ReportRecord(row["run"], row["round"], row["device"], row["attempt"], payload)
