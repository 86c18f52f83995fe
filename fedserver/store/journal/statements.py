"""What each device has released, added up in memory: after the first look, only later rows are read.

A device that trains with DP-SGD has a row for each round, so a run has a hundred thousand of them in the end.
"""

from dataclasses import replace

from fedserver.store.database import Database
from fedserver.store.journal.journal import release_of
from fedserver.store.records import ReleaseRecord
from shoal.core.privacy.report import OPEN, Statement
from shoal.core.types import DeviceId, RunId

ALL = 1 << 40
"""More rows than there are."""
MANY = 5000
"""How many rows are read at a time of all runs, so that what else the store has to do waits only as long."""
KEPT = 16
"""Of how many runs the statements stay in memory. Those of another run are added up again."""
REMOVED, PRESENT = "released_before", "released"
"""The tables with what was released in runs that were removed, and in those that are there."""


class Statements:
    """The statements of the runs that were asked for. For the thread that owns the database."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._known: dict[RunId, tuple[int, dict[DeviceId, Statement]]] = {}
        self._read = {REMOVED: -1, PRESENT: -1}
        self._of_all: dict[DeviceId, Statement] = {}
        self._repaired = 0

    def of(self, run: RunId) -> dict[DeviceId, Statement]:
        """By device, sorted, what it has released in this run."""
        self._add_up_again_after_a_repair()
        counted, found = self._known.get(run, (0, {}))
        # Rows of a run are only added, in this order, until the run is removed.
        rows = self._db.rows("released", "WHERE run = ? ORDER BY rowid LIMIT ? OFFSET ?", (run, ALL, counted))
        if rows:
            found = dict(found)
            for each in map(release_of, rows):
                found[each.device] = with_release(found.get(each.device, Statement()), each)
            found = dict(sorted(found.items()))
            self._known.pop(run, None)
            self._known[run] = counted + len(rows), found
            for oldest in list(self._known)[:-KEPT]:
                del self._known[oldest]
        return found

    def of_all(self) -> dict[DeviceId, Statement] | None:
        """By device, sorted, what it has released over all runs; a release in several runs counts once.

        None if `MANY` rows were read and there are more: call it again.
        """
        self._add_up_again_after_a_repair()
        for table in (REMOVED, PRESENT):
            after = self._read[table]
            numbers = self._db.query(
                f"SELECT rowid FROM {table} WHERE rowid > ? ORDER BY rowid LIMIT ?",  # noqa: S608 - ours
                (after, MANY),
            )
            if numbers:
                between = (after, numbers[-1][0])
                self._add(table, between)
                self._read[table] = between[1]
            if len(numbers) == MANY:
                return None
        return dict(sorted(self._of_all.items()))

    def _add(self, table: str, between: tuple[int, int]) -> None:
        """Count the rows with numbers above the first of these and up to the second."""
        same = "e.device = r.device AND e.release = r.release"
        earlier = f"EXISTS (SELECT 1 FROM {table} AS e WHERE {same} AND e.rowid < r.rowid)"  # noqa: S608 - ours
        if table == PRESENT:
            earlier += f" OR EXISTS (SELECT 1 FROM {REMOVED} AS e WHERE {same})"  # noqa: S608
        known = self._db.query(
            f"SELECT r.run, r.device, r.release FROM {table} AS r"  # noqa: S608
            f" WHERE r.rowid > ? AND r.rowid <= ? AND ({earlier})",
            between,
        )
        counted = {tuple(row) for row in known}
        rows = self._db.rows(table, "WHERE rowid > ? AND rowid <= ? ORDER BY rowid", between)
        for each in map(release_of, rows):
            if (each.run, each.device, each.release) not in counted:
                self._of_all[each.device] = with_release(self._of_all.get(each.device, Statement()), each)

    def forget(self, run: RunId) -> None:
        """The run is removed, and another one may get its name."""
        self._known.pop(run, None)
        self._read, self._of_all = {REMOVED: -1, PRESENT: -1}, {}

    def _add_up_again_after_a_repair(self) -> None:
        """A row that no one could restore is gone, and a later one may have its place: how many were read no
        longer tells which are new."""
        if self._repaired != len(self._db.repaired):
            self._repaired = len(self._db.repaired)
            self._known.clear()
            self._read, self._of_all = {REMOVED: -1, PRESENT: -1}, {}


def with_release(before: Statement, each: ReleaseRecord) -> Statement:
    """A statement of all releases before, and of one more.

    They are stated at the largest delta and group that was asked for, so that one statement holds for all.
    """
    if not each.cost:
        return replace(before, unprotected=(*before.unprotected, OPEN.get(each.release, each.release)))
    trained = before.trained
    if each.curve:
        only_votes = trained is False or not before.cost.curve
        trained = False if only_votes and each.is_vote else None
    if not before.cost:
        return replace(before, cost=each.cost, delta=each.delta, group_size=each.group_size, trained=trained)
    return replace(
        before,
        cost=before.cost + each.cost,
        trained=trained,
        delta=max(before.delta, each.delta),
        group_size=max(before.group_size, each.group_size),
    )
