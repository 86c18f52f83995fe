"""Rollouts: releases that a share of a channel's devices try beside the one that the channel has, and the
counts by which that ends.

    rollout   NAME --> channel, old and new release, share, margin; once it is over, the outcome and why
    counts    of one device in one rollout, the latest only: all of them grow

`shoal.core.rollout` decides by them. A channel has at most one rollout that goes on.
"""

from collections.abc import Sequence
from contextlib import suppress

from fedserver.store.database import RESTORE, Database, Row, record_of
from fedserver.store.identities.audit import AuditLog, Event
from fedserver.store.integrity.redundancy import DamagedRow
from fedserver.store.records import Rollout
from shoal.core.errors import BadPayload, DataFault
from shoal.core.rollout import Counts
from shoal.core.types import DeviceId, ModelKey
from shoal.shell import crash

SHOWN = 20
"""How many of the latest rollouts are shown."""


class Rollouts:
    """All rollouts of a server."""

    def __init__(self, database: Database, audit: AuditLog) -> None:
        self._db, self._audit = database, audit

    def begin(self, new: Rollout) -> None:
        """Store a rollout, or the larger share of one that goes on."""
        with self._db.transaction():
            row = {**vars(new), "pinned": int(new.pinned)}
            row |= {"old_release": row.pop("old"), "new_release": row.pop("new")}
            larger = "share = excluded.share, pinned = excluded.pinned"
            self._db.insert("rollouts", row, f"ON CONFLICT (rollout) DO UPDATE SET {larger}")
            facts = {"channel": new.channel, "release": new.new, "share": new.share, "margin": new.margin}
            self._audit.record(Event.ROLLOUT_BEGUN, **facts)
        crash.point("server.rollout-begun")

    def going(self, channel: str) -> Rollout | None:
        """The one that goes on in a channel. Raises DamagedRow."""
        rows = self._db.rows("rollouts", "WHERE channel = ? AND outcome = ''", (channel,))
        return _rollout_of(rows[0]) if rows else None

    def latest(self) -> Sequence[Rollout]:
        """The latest rollouts of all channels, newest first; damaged rows are left out."""
        query = "SELECT rollout FROM rollouts ORDER BY rowid DESC LIMIT ?"
        found = list[Rollout]()
        for (name,) in self._db.query(query, (SHOWN,)):
            with suppress(DamagedRow):
                found += map(_rollout_of, self._db.rows("rollouts", "WHERE rollout = ?", (name,)))
        return found

    def counts(self, rollout: str) -> dict[DeviceId, tuple[ModelKey, Counts]]:
        """For each device that takes part, its cluster, and what it has counted. Raises DamagedRow, and
        DataFault for counts that contradict each other."""
        rows = self._db.rows("rollout_counts", "WHERE rollout = ? ORDER BY device", (rollout,))
        try:
            return {row["device"]: (row["cluster"], Counts(*(row[each] for each in COLUMNS))) for row in rows}
        except BadPayload as error:
            raise DataFault(f"the counts of rollout {rollout} cannot be read: {error}", RESTORE) from None

    def note(self, going: Rollout, device: DeviceId, cluster: ModelKey, counts: Counts) -> None:
        """Inside a transaction: store what a device has counted, in place of what it had before."""
        replaced = ", ".join(f"{each} = excluded.{each}" for each in COLUMNS)
        row = {"rollout": going.rollout, "device": device, "cluster": cluster, **vars(counts)}
        self._db.insert("rollout_counts", row, f"ON CONFLICT (rollout, device) DO UPDATE SET {replaced}")

    def end(self, over: Rollout) -> None:
        """Inside a transaction: store how one that goes on has ended."""
        self._db.execute(
            "UPDATE rollouts SET ended = ?, outcome = ?, why = ? WHERE rollout = ?",
            (over.ended, over.outcome, over.why, over.rollout),
        )
        facts = {"channel": over.channel, "release": over.new, "outcome": over.outcome, "reason": over.why}
        self._audit.record(Event.ROLLOUT_ENDED, **facts)


COLUMNS = tuple(Counts.__dataclass_fields__)


def _rollout_of(row: Row) -> Rollout:
    names = {"old": row["old_release"], "new": row["new_release"]}
    return record_of(Rollout, row, **names, pinned=bool(row["pinned"]))
