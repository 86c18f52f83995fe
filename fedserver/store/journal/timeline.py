"""The history of each run on disk: one row for each round that is over, bounded, and removed with the run."""

from dataclasses import replace

from fedserver.store.database import Database, Row
from fedserver.store.integrity.redundancy import DamagedRow
from shoal.core.errors import DataFault
from shoal.core.server_kit.history.packed import bounded, pack, unpack
from shoal.core.server_kit.history.records import DeviceRound, RoundHistory
from shoal.core.types import DeviceId, RunId

LARGEST = 32 << 20
"""How many bytes the history of a run has at most. Beyond that, the figures of devices in its oldest rounds
go first, and then its oldest rounds. A hundred devices take about three kilobytes a round."""
ROUNDS, DEVICES = 500, 5_000
"""How many rounds are read at a time, and after how many devices in them the page ends."""
FORGOTTEN = 100
"""In how many rounds a device is forgotten at a time: a year of runs has ten thousand."""

Place = tuple[RunId, int]
"""A round of a run."""
BEGIN: Place = ("", 0)
"""Before all rounds."""


class Timeline:
    """The rounds of all runs that are over, with what happened in them."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._sizes: dict[RunId, int] = {}
        """At least the bytes of each run's history: rows that are deleted with others are still counted."""

    def add(self, run: RunId, round: RoundHistory) -> None:
        """Inside a transaction: add a round that is over."""
        summary, devices = pack(bounded(round))
        self._db.execute(
            "INSERT INTO timeline (run, round, summary, devices) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (run, round)"
            " DO UPDATE SET summary = excluded.summary, devices = excluded.devices",
            (run, round.round, summary, devices),
        )
        known = self._sizes.get(run)  # a look at all rows for each round would make long runs slow
        self._sizes[run] = sum(map(sum, self._lengths(run).values())) if known is None else known
        self._sizes[run] += 0 if known is None else len(summary) + len(devices)
        if self._sizes[run] > LARGEST:
            self._shrink(run)

    def _lengths(self, run: RunId) -> dict[int, tuple[int, int]]:
        """By round, oldest first, the bytes of what is stored of it, and of its devices."""
        query = "SELECT round, length(summary), length(devices) FROM timeline WHERE run = ? ORDER BY round"
        return {number: (summary, devices) for number, summary, devices in self._db.query(query, (run,))}

    def _shrink(self, run: RunId) -> None:
        lengths = self._lengths(run)
        size, older = sum(map(sum, lengths.values())), list(lengths)[:-1]
        for number in older:
            if size > LARGEST and lengths[number][1]:
                self._db.execute(
                    "UPDATE timeline SET devices = x'' WHERE run = ? AND round = ?", (run, number)
                )
                size -= lengths[number][1]
        for number in older:
            if size > LARGEST:
                self._db.execute("DELETE FROM timeline WHERE run = ? AND round = ?", (run, number))
                size -= lengths[number][0]
        self._sizes[run] = size

    def readable(
        self, run: RunId, after: int = 0, *, devices: bool = True, most: int = ROUNDS
    ) -> list[RoundHistory]:
        """As `read`, without the rounds that are damaged for good: they must not hide the others from those
        who only look."""
        query = "SELECT round FROM timeline WHERE run = ? AND round > ? ORDER BY round LIMIT 1"
        while following := self._db.query(query, (run, after)):
            try:
                return self.read(run, after, devices=devices, most=most)
            except (DataFault, DamagedRow):  # of the first of them: a page ends before such a round
                ((after,),) = following
        return []

    def read(
        self, run: RunId, after: int = 0, *, devices: bool = True, most: int = ROUNDS
    ) -> list[RoundHistory]:
        """One page of the rounds with numbers above `after`, oldest first; empty if there are no more.

        devices: whether to include the figures of devices, instead of a digest. most: how many rounds, 1 or
        more. A page ends before a round that is damaged for good, and one that would begin with it raises
        DamagedRow or DataFault: a decision by a history has to know that it lacks one.
        """
        found: list[RoundHistory] = []
        what = "devices" if devices else "x'' AS devices"
        query = f"SELECT round, summary, {what} FROM timeline"  # noqa: S608 - our own words
        rows = self._db.query(
            f"{query} WHERE run = ? AND round > ? ORDER BY round LIMIT ?", (run, after, min(most, ROUNDS))
        )
        listed = 0
        for row in rows:
            try:
                found.append(self._unpacked(run, row, devices))
            except (DataFault, DamagedRow):
                if found:
                    break
                raise
            found[-1] = replace(found[-1], digest=None) if devices else found[-1]
            listed += _entries(found[-1])
            if listed >= DEVICES:
                break
        return found

    def _unpacked(self, run: RunId, row: Row, devices: bool) -> RoundHistory:
        try:
            return unpack(row["summary"], row["devices"])
        except DataFault:  # the row is damaged: restore it from its copy
            row = self._whole(run, row["round"])
            return unpack(row["summary"], row["devices"] if devices else b"")

    def forget(self, device: DeviceId, after: Place) -> Place | None:
        """Inside a transaction: delete what a device measured, and where its descriptor lay, in the next
        `FORGOTTEN` rounds after this one. That it took part stays: it is what tells which models contain it.

        Returns the last of these rounds; None if there were no more.
        """
        query = (
            "SELECT run, round FROM timeline WHERE (run, round) > (?, ?) AND length(devices) > 0"
            " ORDER BY run, round LIMIT ?"
        )
        places = [(run, number) for run, number in self._db.query(query, (*after, FORGOTTEN))]
        for run, number in places:
            try:
                row = self._whole(run, number)
                found = unpack(row["summary"], row["devices"])
            except (DataFault, DamagedRow):
                continue  # whose figures no one can read any more
            devices = tuple(_bare(each) if each.device == device else each for each in found.devices)
            positions = {each: at for each, at in found.positions.items() if each != device}
            if devices != found.devices or len(positions) != len(found.positions):
                packed = pack(replace(found, devices=devices, positions=positions))[1]
                self._db.execute(
                    "UPDATE timeline SET devices = ? WHERE run = ? AND round = ?", (packed, run, number)
                )
        return places[-1] if places else None

    def _whole(self, run: RunId, round: int) -> Row:
        """A row with all of its columns, which is verified, and restored if it is damaged."""
        (row,) = self._db.rows("timeline", "WHERE run = ? AND round = ?", (run, round))
        return row


def _bare(each: DeviceRound) -> DeviceRound:
    return replace(each, examples=0, loss=None, accuracy=None)


def _entries(found: RoundHistory) -> int:
    """How much of an answer a round takes."""
    assigned = found.digest.assigned if found.digest else ()
    return len(found.devices) + len(found.positions) + len(found.clusters) + len(assigned)
