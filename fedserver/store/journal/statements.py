"""What each device has released in a run, added up in memory: after the first look, only later rows are read.

A device that trains with DP-SGD has a row for each round, so a run has a hundred thousand of them in the end.
"""

from dataclasses import replace

from fedserver.store.database import Database
from fedserver.store.integrity.records import ReleaseRecord
from fedserver.store.journal.journal import release_of
from shoal.core.privacy.report import OPEN, Statement
from shoal.core.types import DeviceId, RunId

EVERY = 1 << 40
"""More rows than there are."""


class Statements:
    """The statements of all runs that were asked for. For the thread that owns the database."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._known: dict[RunId, tuple[int, dict[DeviceId, Statement]]] = {}

    def of(self, run: RunId) -> dict[DeviceId, Statement]:
        """By device, sorted, what it has released in this run."""
        counted, found = self._known.get(run, (0, {}))
        # Rows of a run are only added, in this order, until the run is removed.
        rows = self._db.rows(
            "released", "WHERE run = ? ORDER BY rowid LIMIT ? OFFSET ?", (run, EVERY, counted)
        )
        if rows:
            found = dict(found)
            for each in map(release_of, rows):
                found[each.device] = with_release(found.get(each.device, Statement()), each)
            found = dict(sorted(found.items()))
            self._known[run] = counted + len(rows), found
        return found

    def forget(self, run: RunId) -> None:
        """The run is removed, and another one may get its name."""
        self._known.pop(run, None)


def with_release(before: Statement, each: ReleaseRecord) -> Statement:
    """A statement of all releases before, and of one more.

    They are stated at the largest delta and group that was asked for, so that one statement holds for all.
    """
    if not each.cost:
        return replace(before, unprotected=(*before.unprotected, OPEN.get(each.release, each.release)))
    if not before.cost:
        return replace(before, cost=each.cost, delta=each.delta, group_size=each.group_size)
    return replace(
        before,
        cost=before.cost + each.cost,
        delta=max(before.delta, each.delta),
        group_size=max(before.group_size, each.group_size),
    )
