"""Jobs of reducers, in a table of PostgreSQL: the server that leads posts them, and reducers take them.

    leader ── post ──> reducer_jobs <── take, renew, finish ── reducers, on any machine

A job is taken with FOR UPDATE SKIP LOCKED, so no two reducers take the same one, and held by a lease, which
its reducer renews; after that it is free again. Each statement is a transaction of its own, so no lock
outlives a statement, and the session with which a server leads never waits for a reducer.

The table is UNLOGGED: what is in it can be computed again. So a job costs nothing in the write-ahead log, it
is not in backups, and after a crash of PostgreSQL the table is empty. Times are those of PostgreSQL.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from fedserver.store.engines.postgresql import OPTIONS, connected, faults

FORMAT = 1
"""Of jobs. A reducer takes only those of its own format, and a server counts only such reducers."""
REDUCER = f"fedserver reducer {FORMAT}"
"""The name of a reducer's session, by which a server sees that it is there."""
LEASE, RENEWAL = 10.0, 2.5
"""Seconds for which a job is held, and after which the lease is renewed."""
SILENT = 30
"""Seconds after which PostgreSQL ends the session of a reducer that sends nothing."""
FAILURES = 3
"""How often reducers may give a job back until none of them takes it again."""
TAKE = """
UPDATE reducer_jobs SET holder = $1, lease = clock_timestamp() + $2 * interval '1 second' WHERE id = (
    SELECT id FROM reducer_jobs
    WHERE result IS NULL AND lease < clock_timestamp() AND failures < $3 AND format = $4
    ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
) RETURNING id, task, base
"""
RENEW = """
UPDATE reducer_jobs SET lease = clock_timestamp() + $3 * interval '1 second'
WHERE id = $1 AND holder = $2 AND result IS NULL
"""
FINISH = """
UPDATE reducer_jobs SET result = $3, sha256 = $4, read = $5 WHERE id = $1 AND holder = $2 AND result IS NULL
"""
GIVE_BACK = """
UPDATE reducer_jobs SET holder = '', lease = '-infinity', failures = failures + $3
WHERE id = $1 AND holder = $2 AND result IS NULL
"""
STANDINGS = """
SELECT number, result IS NOT NULL, failures, lease < clock_timestamp() FROM reducer_jobs
WHERE batch = $1 ORDER BY number
"""
PRESENT = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1"


@dataclass(frozen=True)
class TakenJob:
    """A job that a reducer holds. task, base: see `fedserver.coordinator.aggregation.orders`."""

    id: int
    task: str
    base: bytes


@dataclass(frozen=True)
class Standing:
    """is_free: whether no reducer holds the job. failures: how often one gave it back."""

    is_done: bool
    is_free: bool
    failures: int

    @property
    def is_given_up(self) -> bool:
        """Whether no reducer will take it again."""
        return self.is_free and not self.is_done and self.failures >= FAILURES


@dataclass(frozen=True)
class Answer:
    """holder: the reducer that computed the result. sha256: of what it has computed, see
    `fedserver.coordinator.aggregation.orders`. read: a CRC-32 of the bytes of the reports that it read."""

    holder: str
    result: bytes
    sha256: str
    read: int


class JobQueue:
    """A session of its own, for any thread. Every method raises DatabaseLost and StorageFault.

    name: of the session; `REDUCER` for that of a reducer. Raises ConfigError if the address cannot be read.
    """

    def __init__(self, url: str, name: str = "fedserver jobs") -> None:
        options: dict[str, Any] = {**OPTIONS, "application_name": name}
        with faults():
            self._connection = connected(url, **options)
            self._connection.cursor_factory = psycopg.RawCursor
            if name == REDUCER:
                self._connection.execute(f"SET idle_session_timeout = '{SILENT}s'")

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._connection.close()

    # -- for the server that leads --------------------------------------------------------------------------

    def reducers(self) -> int:
        """How many reducers are there."""
        return int(self._rows(PRESENT, REDUCER)[0][0])

    def remove_others(self, leader: str) -> int:
        """Delete what other leaders have posted, and return how many jobs that were."""
        return self._count("DELETE FROM reducer_jobs WHERE leader <> $1", leader)

    def post(self, leader: str, batch: str, jobs: Iterable[tuple[str, bytes]]) -> None:
        """Post the tasks and the bases of jobs; their numbers are their places."""
        rows = ((leader, batch, number, FORMAT, task, base) for number, (task, base) in enumerate(jobs))
        columns = "leader, batch, number, format, task, base"
        query = f"INSERT INTO reducer_jobs ({columns}) VALUES ($1, $2, $3, $4, $5, $6)"  # noqa: S608
        with faults(), self._connection.cursor() as cursor:
            cursor.executemany(query, rows)

    def standings(self, batch: str) -> dict[int, Standing]:
        """How the jobs of a batch stand, by number. A job that is missing was deleted."""
        return {
            number: Standing(is_done, is_free, failures)
            for number, is_done, failures, is_free in self._rows(STANDINGS, batch)
        }

    def answer(self, batch: str, number: int) -> Answer | None:
        """The result of a job; None if the job was deleted meanwhile."""
        query = "SELECT holder, result, sha256, read FROM reducer_jobs WHERE batch = $1 AND number = $2"
        found = self._rows(f"{query} AND result IS NOT NULL", batch, number)
        return Answer(*found[0]) if found else None

    def remove(self, batch: str, numbers: Sequence[int]) -> None:
        """Delete jobs, also those that a reducer holds: what a reducer makes of them is refused then."""
        self._count("DELETE FROM reducer_jobs WHERE batch = $1 AND number = ANY($2)", batch, list(numbers))

    def remove_all(self, batch: str) -> None:
        self._count("DELETE FROM reducer_jobs WHERE batch = $1", batch)

    # -- for reducers ---------------------------------------------------------------------------------------

    def take(self, holder: str) -> TakenJob | None:
        """The oldest job that is free, which this reducer holds from now on; None if there is none."""
        found = self._rows(TAKE, holder, LEASE, FAILURES, FORMAT)
        return TakenJob(*found[0]) if found else None

    def renew(self, job: TakenJob, holder: str) -> bool:
        """Hold a job for longer. False if the reducer has lost it."""
        return self._count(RENEW, job.id, holder, LEASE) > 0

    def finish(self, job: TakenJob, holder: str, result: bytes, sha256: str, read: int) -> bool:
        """Bring the result of a job. False if the reducer has lost it."""
        return self._count(FINISH, job.id, holder, result, sha256, read) > 0

    def give_back(self, job: TakenJob, holder: str, failed: bool) -> None:
        """Let another reducer take the job. failed: this one was not able to do it."""
        self._count(GIVE_BACK, job.id, holder, int(failed))

    def _rows(self, query: str, *values: object) -> list[Any]:
        with faults():
            return self._connection.execute(query.encode(), values, binary=True).fetchall()

    def _count(self, query: str, *values: object) -> int:
        with faults():
            return self._connection.execute(query.encode(), values).rowcount
