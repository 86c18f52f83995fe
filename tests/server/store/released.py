"""What devices have released, by all rows of the store: to compare with what is added up as rows come."""

from collections.abc import Iterable

from fedserver.store.database import Database
from fedserver.store.journal.journal import release_of
from fedserver.store.records import ReleaseRecord
from shoal.core.privacy.cost import total
from shoal.core.privacy.report import OPEN, Statement
from shoal.core.types import DeviceId, RunId


def releases(database: Database, run: RunId | None = None) -> list[ReleaseRecord]:
    """The recorded releases of a run, or of all runs, with those that were removed."""
    if run is not None:
        found = [*database.rows("released", "WHERE run = ? ORDER BY rowid", (run,))]
    else:
        tables = ("released_before", "released")
        found = [row for table in tables for row in database.rows(table, "ORDER BY rowid")]
    return [release_of(row) for row in found]


def statements(records: Iterable[ReleaseRecord]) -> dict[DeviceId, Statement]:
    """What each device has released. A release that arrived in several runs counts once."""
    by_device: dict[DeviceId, dict[str, ReleaseRecord]] = {}
    for each in records:
        by_device.setdefault(each.device, {})[each.release] = each
    return {device: _statement(list(found.values())) for device, found in sorted(by_device.items())}


def _statement(records: list[ReleaseRecord]) -> Statement:
    kept = [each for each in records if each.cost]
    curves = [each.is_vote for each in kept if each.curve]
    # At the largest delta and group asked for, so that one statement holds for all of them.
    return Statement(
        total(each.cost for each in kept),
        max((each.delta for each in kept), default=Statement.delta),
        max((each.group_size for each in kept), default=Statement.group_size),
        tuple(OPEN.get(each.release, each.release) for each in records if not each.cost),
        trained=False if curves and all(curves) else None,
    )
