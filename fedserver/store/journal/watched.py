"""What devices have said of their data: sums of randomized answers, by release, cluster and day.

Which device has said what is not stored, only when it last said something: of each, one answer in
`DAYS_BETWEEN` days counts. Sums go with the run, and after `DAYS_KEPT` days.
"""

from dataclasses import dataclass

from fedserver.store.database import Database
from fedserver.store.journal.placements import check_present
from shoal.core.privacy.noise.response import EVERY_DAYS
from shoal.core.server_kit.drift_answers import Day
from shoal.core.types import DeviceId, ModelKey, RunId
from shoal.shell import crash

DAYS_BETWEEN = int(EVERY_DAYS) - 2
"""Days: two fewer than devices wait, since their clocks differ."""
DAYS_KEPT = 730


@dataclass(frozen=True)
class Answer:
    """run, subject: of which run or release. cluster: "" for those whose cluster is not known. day: since
    1970."""

    run: RunId
    subject: str
    cluster: ModelKey
    device: DeviceId
    day: int
    moved: bool


class Watched:
    """The sums of all releases."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def counts(self, device: DeviceId, day: int) -> bool:
        """Whether an answer of this device would count on that day."""
        rows = self._db.rows("answered", "WHERE device = ?", (device,))
        return not rows or not 0 <= day - rows[0]["day"] < DAYS_BETWEEN

    def add(self, new: Answer) -> bool:
        """Count an answer, unless this device has given one lately. Returns whether it counts. Raises
        NotFound if the run was removed meanwhile."""
        with self._db.transaction():
            check_present(self._db, new.run)
            if not self.counts(new.device, new.day):
                return False
            if not self._db.query("SELECT 1 FROM watched WHERE day = ? LIMIT 1", (new.day,)):
                self._db.execute("DELETE FROM watched WHERE day < ?", (new.day - DAYS_KEPT,))
                self._db.execute("DELETE FROM answered WHERE day < ?", (new.day - DAYS_BETWEEN,))
            self._db.execute(
                "INSERT INTO answered (device, day) VALUES (?, ?)"
                " ON CONFLICT (device) DO UPDATE SET day = excluded.day",
                (new.device, new.day),
            )
            self._db.execute(
                "INSERT INTO watched (run, subject, cluster, day, answers, moved) VALUES (?, ?, ?, ?, 1, ?)"
                " ON CONFLICT (subject, cluster, day) DO UPDATE SET answers = watched.answers + 1,"
                " moved = watched.moved + excluded.moved",
                (new.run, new.subject, new.cluster, new.day, int(new.moved)),
            )
            crash.point("server.answer-committing")
        return True

    def all(self) -> dict[tuple[str, ModelKey], list[Day]]:
        """The days of each release, or run, and cluster, oldest first. Those that cannot be are left out."""
        found: dict[tuple[str, ModelKey], list[Day]] = {}
        query = "SELECT subject, cluster, day, answers, moved FROM watched ORDER BY subject, cluster, day"
        for subject, cluster, day, answers, moved in self._db.query(query):
            if {type(each) for each in (day, answers, moved)} == {int} and 0 <= moved <= answers:
                found.setdefault((subject, cluster), []).append(Day(day, answers, moved))
        return found
