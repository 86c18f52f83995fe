"""What newcomers were answered that asked for a model: bounded, and removed with the run.

It is what the server learns anyway when it answers. A newcomer that compares the models on its own samples
keeps its choice, so its record has the clusters whose models it was given, and no more.
"""

import json
import time

from fedserver.store.database import Database, Row, record_of
from fedserver.store.journal.newcomers import ABSTAINED, NEAREST, PlacementRecord
from shoal.core.errors import NotFound
from shoal.core.types import DeviceId, RunId

MAX_RECORDS, MAX_OF_DEVICE = 10_000, 20
"""How many records are kept in all, and of one device in one run; the oldest go."""
PAGE, TEXT = 200, 400
"""How many records are read at a time, and how many characters of a reason are kept."""
TOO_MANY = (
    "DELETE FROM newcomers WHERE number <="
    " (SELECT number FROM newcomers ORDER BY number DESC LIMIT 1 OFFSET ?)"
)
TOO_MANY_OF_DEVICE = (
    "DELETE FROM newcomers WHERE run = ?1 AND device = ?2 AND number <= (SELECT number FROM newcomers"
    " WHERE run = ?1 AND device = ?2 ORDER BY number DESC LIMIT 1 OFFSET ?3)"
)


UNPLACED = (
    "SELECT run, device, SUM(times) AS times FROM newcomers AS one WHERE outcome IN (?, ?) AND at > ?"
    " AND number > (SELECT coalesce(max(number), 0) FROM newcomers"
    " WHERE run = one.run AND device = one.device AND outcome NOT IN (?, ?))"
    " GROUP BY run, device HAVING SUM(times) >= ? ORDER BY run, device"
)
REPEATED = 3
"""From this many answers on that no cluster fits, a newcomer keeps arriving so."""


class Placements:
    """The records of all runs."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def add(self, new: PlacementRecord) -> None:
        """Record an answer. If it is the one that the device had last, its record is written again. Raises
        NotFound if the run was removed meanwhile."""
        whose, now = (new.run, new.device), time.time()
        with self._db.transaction():
            check_present(self._db, new.run)
            last = self._db.rows(
                "newcomers", "WHERE run = ? AND device = ? ORDER BY number DESC LIMIT 1", whose
            )
            again = _record_of(last[0]) if last and _same(_record_of(last[0]), new) else None
            ((number,),) = self._db.query("SELECT coalesce(max(number), 0) + 1 FROM newcomers")
            since, times = (again.since, again.times + 1) if again else (now, 1)
            stored = {"reason": new.reason[:TEXT], "models": json.dumps(new.models), "number": number}
            figures = {"since": since, "at": now, "times": times}
            self._db.insert("newcomers", {**vars(new), **stored, **figures})
            if again:
                self._db.execute("DELETE FROM newcomers WHERE number = ?", (again.number,))
            self._db.execute(TOO_MANY_OF_DEVICE, (*whose, MAX_OF_DEVICE))
            self._db.execute(TOO_MANY, (MAX_RECORDS,))

    def read(self, run: RunId = "", device: DeviceId = "", after: int = 0) -> list[PlacementRecord]:
        """One page of the records with numbers above `after`, oldest first. run, device: "" for all."""
        rows = self._db.rows(
            "newcomers",
            "WHERE ? IN ('', run) AND ? IN ('', device) AND number > ? ORDER BY number LIMIT ?",
            (run, device, after, PAGE),
        )
        return list(map(_record_of, rows))

    def unplaced(self, since: float) -> list[tuple[RunId, DeviceId, int]]:
        """The newcomers that no cluster has fitted again and again, as far as the server knows: in which run,
        and how often since they were last answered otherwise. since: seconds since 1970."""
        without = (ABSTAINED, NEAREST)
        rows = self._db.query(UNPLACED, (*without, since, *without, REPEATED))
        return [(run, device, int(times)) for run, device, times in rows]


def check_present(database: Database, run: RunId) -> None:
    """Raises NotFound for a run that was removed, which no row may name any more."""
    if not database.query("SELECT 1 FROM runs WHERE run = ?", (run,)):
        raise NotFound(f"run {run!r} was removed", "ask for another one")


def _same(one: PlacementRecord, other: PlacementRecord) -> bool:
    """Whether two answers to one device are the same, apart from figures."""
    return (one.evidence, one.outcome, one.cluster, one.models) == (
        other.evidence,
        other.outcome,
        other.cluster,
        other.models,
    )


def _record_of(row: Row) -> PlacementRecord:
    return record_of(PlacementRecord, row, models=tuple(json.loads(row["models"])))
