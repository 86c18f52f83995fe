"""The rows of runs: what was asked for, where each stands, its checkpoints, and its rounds."""

import json
from collections.abc import Sequence
from typing import Any

from fedserver.store.blobs import Blobs, References
from fedserver.store.database import Database
from fedserver.store.history import History
from fedserver.store.identities.audit import AuditLog, Event
from fedserver.store.records import RoundRecord, RunRecord, RunSpec, Standing
from shoal.core.engine.checkpoint import Structure, blobs_of, decode, encode
from shoal.core.exchange.payload import Weights
from shoal.core.types import DeviceId, RunId, Tensors
from shoal.shell import crash

VERSIONS = 5
"""How many checkpoints of a run are kept: a device that still fetches a model of an earlier round can finish,
and an operator can go back to one."""


class Runs:
    """All runs of a server. Blobs are on the disk before rows refer to them; rows go before their blobs."""

    def __init__(
        self, database: Database, blobs: Blobs, references: References, history: History, audit: AuditLog
    ) -> None:
        self._db, self._blobs, self._references = database, blobs, references
        self._history, self._audit = history, audit

    def keep(self, run: RunId, tensors: Tensors) -> Weights:
        """Store tensors for a run's tasks. They stay until its next round, longer if that refers to them."""
        weights = self._blobs.keep(tensors)
        self._references.hold(run, weights.blob.sha256)
        return weights

    def adopt(self, run: RunId, owner: DeviceId, weights: Weights) -> None:
        """Make an upload of `owner` a blob that stays as with `keep`. Raises NotFound if it never arrived."""
        name = weights.blob.sha256
        self._references.hold(run, name)
        self._blobs.accept(owner, [name])
        self._blobs.discard(owner, [name])

    def release(self, run: RunId) -> None:
        """Delete what was kept or adopted for this run and is in no checkpoint."""
        self._references.remove_unneeded(self._references.release(run))

    def add(self, record: RunRecord, checkpoint: Structure) -> None:
        """A new run, that starts with `checkpoint`."""
        with self._db.transaction():
            self._db.execute(
                "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    record.run,
                    json.dumps(encode(RunSpec, record.spec, _no_tensors), sort_keys=True),
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
            self._history.advance()
            self._audit.record(Event.RUN_STARTED, run=record.run, algorithm=record.spec.algorithm)

    def all(self) -> list[RunRecord]:
        """All runs, oldest first."""
        rows = self._db.query("SELECT * FROM runs ORDER BY rowid")
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
        """The state that a round opens, or opened, with: the current round, or another of `versions`."""
        (row,) = self._db.query(
            "SELECT structure FROM checkpoints WHERE run = ?1 AND round = coalesce(?2,"
            " (SELECT max(round) FROM checkpoints WHERE run = ?1))",
            (run, round),
        )
        structure: Structure = json.loads(row["structure"])
        return structure

    def checkpoints(self, run: RunId) -> list[tuple[int, list[str]]]:
        """The rounds that a checkpoint of this run opens, newest first, each with the blobs that it needs."""
        rounds = self._db.query("SELECT round FROM checkpoints WHERE run = ? ORDER BY round DESC", (run,))
        query = "SELECT sha256 FROM checkpoint_blobs WHERE run = ? AND round = ? ORDER BY sha256"
        return [(number, [name for (name,) in self._db.query(query, (run, number))]) for (number,) in rounds]

    def drop_checkpoint(self, run: RunId, round: int) -> None:
        """Remove an unusable checkpoint. If it was the newest, the run goes back to the one before it."""
        with self._db.transaction():
            self._db.execute("DELETE FROM checkpoints WHERE run = ? AND round = ?", (run, round))
            ((last,),) = self._db.query("SELECT max(round) FROM checkpoints WHERE run = ?", (run,))
            if last is not None and last < round:
                self._db.execute(
                    "UPDATE runs SET round = ?, asked = '[]', title = '' WHERE run = ? AND round > ?",
                    (last, run, last),
                )
                self._db.execute("DELETE FROM reports WHERE run = ? AND round >= ?", (run, last))
                self._db.execute("DELETE FROM rounds WHERE run = ? AND round >= ?", (run, last))

    def versions(self, run: RunId) -> list[int]:
        """The rounds of a run whose checkpoints are kept, oldest first; the last is the current one."""
        rows = self._db.query("SELECT round FROM checkpoints WHERE run = ? ORDER BY round", (run,))
        return [number for (number,) in rows]

    def open_round(self, run: RunId, asked: Sequence[DeviceId], title: str) -> None:
        """The run's current round asks these devices."""
        with self._db.transaction():
            self._db.execute(
                "UPDATE runs SET asked = ?, title = ? WHERE run = ?", (json.dumps(asked), title, run)
            )

    def save_round(
        self, run: RunId, closed: RoundRecord, checkpoint: Structure, abandoned_in_a_row: int
    ) -> None:
        """A round is over, and the next one will open with `checkpoint`."""
        following, oldest = closed.round + 1, closed.round + 2 - VERSIONS
        with self._db.transaction():
            self._db.execute(
                "UPDATE runs SET round = ?, asked = '[]', title = '', abandoned_in_a_row = ? WHERE run = ?",
                (following, abandoned_in_a_row, run),
            )
            self._db.execute(
                "INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    run,
                    closed.round,
                    closed.title,
                    closed.asked,
                    closed.reported,
                    json.dumps(dict(closed.missing)),
                    closed.abandoned,
                    closed.seconds,
                    closed.accuracy,
                ),
            )
            self._add_checkpoint(run, following, checkpoint)
            before = self._references.of_run(run)
            self._db.execute("DELETE FROM checkpoints WHERE run = ? AND round < ?", (run, oldest))
            self._db.execute("DELETE FROM report_blobs WHERE run = ?", (run,))
            self._db.execute("DELETE FROM reports WHERE run = ? AND round < ?", (run, oldest))
            self._history.advance()
            crash.point("server.round-committing")
        crash.point("server.round-saved")
        self._references.remove_unneeded(before | self._references.release(run))

    def end(self, run: RunId, standing: Standing, reason: str) -> None:
        """A run is over. Its last checkpoint stays."""
        with self._db.transaction():
            self._db.execute(
                "UPDATE runs SET standing = ?, reason = ?, asked = '[]' WHERE run = ?",
                (standing.value, reason, run),
            )
            self._audit.record(Event.RUN_ENDED, run=run, standing=standing.value, reason=reason)
            before = self._references.of_run(run)
            self._db.execute("DELETE FROM report_blobs WHERE run = ?", (run,))
        self._references.remove_unneeded(before | self._references.release(run))

    def rounds(self, run: RunId) -> list[RoundRecord]:
        """The rounds that are over, oldest first."""
        rows = self._db.query("SELECT * FROM rounds WHERE run = ? ORDER BY round", (run,))
        return [
            RoundRecord(
                row["round"],
                row["title"],
                row["asked"],
                row["reported"],
                json.loads(row["missing"]),
                row["abandoned"],
                row["seconds"],
                row["accuracy"],
            )
            for row in rows
        ]

    def _add_checkpoint(self, run: RunId, round: int, checkpoint: Structure) -> None:
        self._db.execute("INSERT INTO checkpoints VALUES (?, ?, ?)", (run, round, json.dumps(checkpoint)))
        for name in blobs_of(checkpoint):
            self._db.execute("INSERT INTO checkpoint_blobs VALUES (?, ?, ?)", (run, round, name))


def _no_tensors(tensors: object) -> Any:
    raise TypeError("a run specification holds no tensors")
