"""Runs in the database: their specifications and states, checkpoints and rounds."""

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict

from fedserver.store.content.blobs import Blobs, References
from fedserver.store.database import RESTORE, Database, Row, from_text, record_of, to_text
from fedserver.store.history import History
from fedserver.store.identities.audit import AuditLog, Event
from fedserver.store.integrity.redundancy import DamagedRow
from fedserver.store.journal.journal import RELEASED, add_lines
from fedserver.store.journal.outcomes import OutcomeCache
from fedserver.store.journal.statements import Statements
from fedserver.store.journal.timeline import Timeline
from fedserver.store.records import Move, RunRecord, RunSpec, Standing
from fedserver.store.releases import ReleaseRecord, Releases
from shoal.core.engine.checkpoint import Structure, blobs_of
from shoal.core.engine.round.attendance import Memory
from shoal.core.errors import DataFault, NotFound
from shoal.core.exchange.payload import Weights
from shoal.core.server_kit.history.records import RoundHistory
from shoal.core.types import DeviceId, RunId, Tensors
from shoal.shell import crash

VERSIONS = 5
"""How many checkpoints of a run are kept, so that a device can finish fetching a model of an earlier round,
and an operator can roll back to one. Rounds that were abandoned have none of their own."""


class Runs:
    """All runs of a server.

    outcomes: what became of their rounds, in short. statements: what devices have released in them.

    A blob is on disk before a row refers to it, and a row is deleted before its blobs.
    """

    def __init__(
        self,
        database: Database,
        blobs: Blobs,
        references: References,
        history: History,
        audit: AuditLog,
        releases: Releases,
    ) -> None:
        self._db, self._blobs, self._references = database, blobs, references
        self._history, self._audit, self._releases = history, audit, releases
        self._timeline = Timeline(database)
        self.outcomes = OutcomeCache(self._timeline)
        self.statements = Statements(database)

    def keep(self, run: RunId, tensors: Tensors) -> Weights:
        """Store tensors for a run's tasks.

        They stay until its next round, and longer if that refers to them.
        """
        weights = self._blobs.keep(tensors)
        self._references.hold(run, weights.blob.sha256)
        return weights

    def adopt(self, run: RunId, owner: DeviceId, weights: Weights) -> None:
        """Turn an upload of `owner` into a blob that stays as with `keep`.

        Raises NotFound if it is missing.
        """
        name = weights.blob.sha256
        self._references.hold(run, name)
        self._blobs.accept(owner, [name])
        self._blobs.discard(owner, [name])

    def release(self, run: RunId) -> None:
        """Delete what was kept or adopted for this run and is not part of a checkpoint."""
        self._references.remove_unneeded(self._references.release(run))

    def add(self, record: RunRecord, checkpoint: Structure) -> None:
        """Add a new run, which starts with `checkpoint`."""
        with self._db.transaction():
            self._db.insert("runs", _row_of(record))
            self._add_checkpoint(record.run, record.round, checkpoint)
            self._history.advance()
            self._audit.record(Event.RUN_STARTED, run=record.run, algorithm=record.spec.algorithm)

    def names(self) -> list[RunId]:
        """All runs, oldest first."""
        return [name for (name,) in self._db.query("SELECT run FROM runs ORDER BY rowid")]

    def get(self, run: RunId) -> RunRecord:
        """One run. Raises NotFound; DataFault or DamagedRow if its row cannot be read."""
        rows = self._db.rows("runs", "WHERE run = ?", (run,))
        if not rows:
            raise NotFound(f"there is no run {run!r}")
        (row,) = rows
        try:
            return _run_of(row)
        except (ValueError, TypeError) as error:
            raise DataFault(f"the row of run {run} cannot be read: {error}", RESTORE) from None

    def all(self) -> list[RunRecord]:
        """All runs that can be read, oldest first."""
        found = []
        for run in self.names():
            with suppress(DataFault, DamagedRow):
                found.append(self.get(run))
        return found

    def checkpoint(self, run: RunId, round: int | None = None) -> Structure:
        """The state that a round opens with: the current round, or another of `versions`.

        Raises NotFound if it is not there, or not any more; DataFault or DamagedRow if it cannot be read.
        """
        rows = self._db.rows(
            "checkpoints",
            "WHERE run = ?1 AND round = coalesce(?2, (SELECT max(round) FROM checkpoints WHERE run = ?1))",
            (run, round),
        )
        if not rows:
            which = "" if round is None else f" of round {round}"
            raise NotFound(f"run {run} has no checkpoint{which}")
        try:
            structure: Structure = json.loads(rows[0]["structure"])
        except ValueError as error:
            raise DataFault(f"a checkpoint of run {run} cannot be read: {error}", RESTORE) from None
        return structure

    def checkpoints(self, run: RunId) -> list[tuple[int, list[str]]]:
        """The rounds that have a checkpoint, newest first, each with the names of the blobs that it refers
        to."""
        rounds = self._db.query("SELECT round FROM checkpoints WHERE run = ? ORDER BY round DESC", (run,))
        query = "SELECT sha256 FROM checkpoint_blobs WHERE run = ? AND round = ? ORDER BY sha256"
        return [(number, [name for (name,) in self._db.query(query, (run, number))]) for (number,) in rounds]

    def newest_blobs(self) -> set[str]:
        """The blobs of the newest checkpoint of every run."""
        query = (
            "SELECT own.sha256 FROM (SELECT run, max(round) AS round FROM checkpoints GROUP BY run) AS newest"
            " JOIN checkpoint_blobs AS own ON own.run = newest.run AND own.round = newest.round"
        )
        return {name for (name,) in self._db.query(query)}

    def drop_checkpoint(self, run: RunId, round: int) -> None:
        """Remove an unusable checkpoint with its blobs. If it was the newest, the run goes back by one."""
        before = self._references.of_run(run)
        with self._db.transaction():
            self._db.execute("DELETE FROM checkpoints WHERE run = ? AND round = ?", (run, round))
            ((last,),) = self._db.query("SELECT max(round) FROM checkpoints WHERE run = ?", (run,))
            if last is not None and last < round:
                self._db.execute(
                    "UPDATE runs SET round = ?, asked = '[]', title = '' WHERE run = ? AND round > ?",
                    (last, run, last),
                )
                self._db.execute("DELETE FROM reports WHERE run = ? AND round >= ?", (run, last))
                self._db.execute("DELETE FROM timeline WHERE run = ? AND round >= ?", (run, last))
        self.outcomes.forget(run)
        self._references.remove_unneeded(before)

    def versions(self, run: RunId) -> list[int]:
        """The rounds of a run whose checkpoints are kept, oldest first; the last is the current one."""
        rows = self._db.query("SELECT round FROM checkpoints WHERE run = ? ORDER BY round", (run,))
        return [number for (number,) in rows]

    def open_round(self, run: RunId, asked: Sequence[DeviceId], title: str, said: Sequence[str] = ()) -> None:
        """Open the run's current round, which asks these devices. said: lines for the run's log."""
        with self._db.transaction():
            self._db.execute(
                "UPDATE runs SET asked = ?, title = ?, opened = ? WHERE run = ?",
                (json.dumps(asked), title, time.time(), run),
            )
            add_lines(self._db, run, said)

    def step_in(self, run: RunId, devices: Sequence[DeviceId]) -> None:
        """Let the open round ask these devices as well."""
        with self._db.transaction():
            (row,) = self._db.rows("runs", "WHERE run = ?", (run,))
            asked = json.dumps([*json.loads(row["asked"]), devices])
            self._db.execute("UPDATE runs SET asked = ? WHERE run = ?", (asked, run))

    def save_round(
        self,
        run: RunId,
        closed: RoundHistory,
        checkpoint: Structure,
        abandoned_in_a_row: int,
        memory: Memory,
        said: Sequence[str] = (),
    ) -> None:
        """End a round; the next one will open with `checkpoint` and `memory`. said: lines for the run's
        log."""
        following, structure = closed.round + 1, json.dumps(checkpoint)
        with self._db.transaction():
            self._db.execute(
                "UPDATE runs SET round = ?, asked = '[]', title = '', abandoned_in_a_row = ?, memory = ?"
                " WHERE run = ?",
                (following, abandoned_in_a_row, to_text(Memory, memory), run),
            )
            self._timeline.add(run, closed)
            add_lines(self._db, run, said)
            before = self._references.of_run(run)
            if closed.abandoned:
                # The next round opens with the same state. A second copy of it would only age the others, and
                # a few abandoned rounds would leave nothing to go back to.
                self._db.execute(
                    "DELETE FROM checkpoints WHERE run = ? AND round = ? AND structure = ?",
                    (run, closed.round, structure),
                )
            self._add_checkpoint(run, following, checkpoint)
            oldest = self.versions(run)[-VERSIONS:][0]
            self._db.execute("DELETE FROM checkpoints WHERE run = ? AND round < ?", (run, oldest))
            self._db.execute("DELETE FROM report_blobs WHERE run = ?", (run,))
            # The rows of reports stay as long, also those of abandoned rounds: a device that did not hear
            # that its report was counted still gets that answer.
            last = min(oldest, closed.round + 2 - VERSIONS)
            self._db.execute("DELETE FROM reports WHERE run = ? AND round < ?", (run, last))
            self._history.advance()
            crash.point("server.round-committing")
        crash.point("server.round-saved")
        self._references.remove_unneeded(before | self._references.release(run))

    def end(
        self,
        run: RunId,
        standing: Standing,
        reason: str,
        ended: float,
        release: ReleaseRecord | None = None,
        move: Move | None = None,
    ) -> None:
        """End a run. Its last checkpoint stays. ended: seconds since 1970. release: that is made of it.

        move: what a channel is given by that.
        """
        with self._db.transaction():
            if release is not None:
                self._releases.insert(release, move)
            self._db.execute(
                "UPDATE runs SET standing = ?, reason = ?, asked = '[]', ended = ? WHERE run = ?",
                (standing.value, reason, ended, run),
            )
            self._audit.record(Event.RUN_ENDED, run=run, standing=standing.value, reason=reason)
            before = self._references.of_run(run)
            self._db.execute("DELETE FROM report_blobs WHERE run = ?", (run,))
        self._references.remove_unneeded(before | self._references.release(run))

    def pause(self, run: RunId, reason: str) -> None:
        """Open no more rounds of a run, for this reason."""
        with self._db.transaction():
            self._db.execute("UPDATE runs SET paused = ? WHERE run = ?", (reason, run))
            self._audit.record(Event.RUN_PAUSED, run=run, reason=reason)

    def resume(self, run: RunId, opened: float) -> None:
        """End a pause. opened: when the round that is open would have been opened without the pause, seconds
        since 1970."""
        with self._db.transaction():
            self._db.execute("UPDATE runs SET paused = '', opened = ? WHERE run = ?", (opened, run))
            self._audit.record(Event.RUN_RESUMED, run=run, reason="")

    def change(self, run: RunId, spec: RunSpec, round: int, checkpoint: Structure) -> None:
        """Change what the operator asked for, and the state with which the current round opens."""
        with self._db.transaction():
            self._db.execute("UPDATE runs SET spec = ? WHERE run = ?", (to_text(RunSpec, spec), run))
            # With its blobs, in which a large part of the state may be.
            self._db.execute("DELETE FROM checkpoints WHERE run = ? AND round = ?", (run, round))
            self._add_checkpoint(run, round, checkpoint)
            self._audit.record(Event.RUN_CHANGED, run=run, policy=asdict(spec.policy), **spec.parameters)

    def take_graph(self, run: RunId, spec: RunSpec) -> None:
        """Let a run have the graph that a report of its open round brought; the next checkpoint keeps it."""
        self._blobs.make_durable(spec.graph)
        with self._db.transaction():
            self._db.execute("UPDATE runs SET spec = ? WHERE run = ?", (to_text(RunSpec, spec), run))

    def respecify(self, run: RunId, spec: RunSpec) -> None:
        """Change what the operator asked for, where no state depends on it; the run may be over."""
        with self._db.transaction():
            self._db.execute("UPDATE runs SET spec = ? WHERE run = ?", (to_text(RunSpec, spec), run))
            self._audit.record(Event.RUN_CHANGED, run=run, every=spec.every)

    def drop_versions(self, run: RunId, rounds: Sequence[int]) -> None:
        """Delete these checkpoints, none of which is the last."""
        before = self._references.of_run(run)
        with self._db.transaction():
            for number in rounds:
                self._db.execute("DELETE FROM checkpoints WHERE run = ? AND round = ?", (run, number))
        self._references.remove_unneeded(before)

    def reactivate(self, run: RunId, why: str) -> RunRecord:
        """Let a run that is over go on from its last checkpoint, in the round in which it ended. Returns the
        run.

        Reports of that round were not combined, and would be taken for ones that count.
        """
        with self._db.transaction():
            self._db.execute(
                "UPDATE runs SET standing = ?, reason = '', asked = '[]', title = '', abandoned_in_a_row = 0,"
                " paused = '', ended = 0 WHERE run = ?",
                (Standing.ACTIVE.value, run),
            )
            self._db.execute(
                "DELETE FROM reports WHERE run = ?1 AND round >= (SELECT round FROM runs WHERE run = ?1)",
                (run,),
            )
            self._history.advance()
            self._audit.record(Event.RUN_RESUMED, run=run, reason=why)
        return self.get(run)

    def prune(self, run: RunId) -> int:
        """Delete all checkpoints of a run except for the last one. Returns how many there were."""
        with self._db.transaction():
            before, older = self._references.of_run(run), self.versions(run)[:-1]
            if older:
                self._db.execute("DELETE FROM checkpoints WHERE run = ? AND round <= ?", (run, older[-1]))
                self._audit.record(Event.RUN_PRUNED, run=run, checkpoints=len(older))
        self._references.remove_unneeded(before)
        return len(older)

    def remove(self, run: RunId) -> None:
        """Delete a run with its releases, of which no channel may have one now. What devices have released in
        it stays known, since their privacy loss stays, and so does its name: a device that was away may still
        have a result of the run, or remember it."""
        with self._db.transaction():
            before = self._references.of_run(run)
            self._releases.erase(self._releases.names(run))
            self._db.execute(
                f"INSERT INTO released_before ({RELEASED}) SELECT {RELEASED} FROM released"  # noqa: S608
                " WHERE run = ? ORDER BY rowid ON CONFLICT DO NOTHING",
                (run,),
            )
            of_run = (
                "released",
                "newcomers",
                "watched",
                "log",
                "traffic",
                "timeline",
                "reports",
                "checkpoints",
            )
            for table in (*of_run, "runs"):
                self._db.execute(f"DELETE FROM {table} WHERE run = ?", (run,))  # noqa: S608 - a table of ours
            self._db.execute("INSERT INTO removed (run) VALUES (?) ON CONFLICT DO NOTHING", (run,))
            self._audit.record(Event.RUN_REMOVED, run=run)
        self.outcomes.forget(run)
        self.statements.forget(run)
        self._references.remove_unneeded(before | self._references.release(run))

    def removed(self) -> set[RunId]:
        """The names of the runs that were removed."""
        return {row["run"] for row in self._db.rows("removed", "ORDER BY run")}

    def _add_checkpoint(self, run: RunId, round: int, checkpoint: Structure) -> None:
        whose = {"run": run, "round": round}
        self._db.insert("checkpoints", {**whose, "structure": json.dumps(checkpoint)})
        (row,) = self._db.rows("runs", "WHERE run = ?", (run,))
        # Without the graph, devices without a learner could not use the models.
        graph = from_text(RunSpec, row["spec"]).graph
        for name in blobs_of(checkpoint).union([graph] if graph else []):
            self._db.insert("checkpoint_blobs", {**whose, "sha256": name})


def _row_of(record: RunRecord) -> dict[str, object]:
    row = {
        **vars(record),
        "spec": to_text(RunSpec, record.spec),
        "standing": record.standing.value,
        "asked": json.dumps((*record.asked, *record.stepped_in)),
        "memory": to_text(Memory, record.memory),
    }
    del row["stepped_in"]
    return row


def _run_of(row: Row) -> RunRecord:
    # The devices that a round asked first, and then a list for each group that stepped in.
    asked = json.loads(row["asked"])
    return record_of(
        RunRecord,
        row,
        spec=from_text(RunSpec, row["spec"]),
        standing=Standing(row["standing"]),
        asked=tuple(each for each in asked if isinstance(each, str)),
        stepped_in=tuple(tuple(each) for each in asked if not isinstance(each, str)),
        memory=from_text(Memory, row["memory"]),
    )
