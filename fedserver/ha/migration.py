"""Move a store from its state folder to a database elsewhere, or back.

Blobs are verified and copied first. Then all rows go in one transaction, so the target has everything or
nothing. The settings are changed last: until then the next start uses the source, and the move can be
repeated.
"""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import yaml

from fedserver.store.content.blobs import Blobs
from fedserver.store.database import Database
from fedserver.store.engines import FILE, Elsewhere, open_blobs, open_database
from fedserver.store.engines.schema import TABLES
from fedserver.store.store import own
from shoal.core.errors import ConfigError, DataFault, Refused
from shoal.shell import crash, disk

LEFT = f"{FILE}.moved"
"""The name that the database in a state folder gets once it is the database elsewhere that counts."""


@dataclass(frozen=True)
class Moved:
    """What was moved. size: of the blobs, in bytes."""

    rows: int
    blobs: int
    size: int


def to_database(state: Path, settings: Path, elsewhere: Elsewhere) -> Moved:
    """Move what is in a state folder, and change its settings.

    Raises ConfigError, Refused if the database has other contents, NotLeader, and StorageFault.
    """
    with own(state):
        source, target = _Place(state), _Place(state, elsewhere)
        with closing(source), closing(target):
            moved = _move(source, target)
            _set(settings, database=elsewhere.database, blobs=str(elsewhere.blobs))
        crash.point("server.store-moved")
        _set_aside(state)
    return moved


def to_folder(state: Path, settings: Path, elsewhere: Elsewhere) -> Moved:
    """Move what is in a database elsewhere into a state folder, and change its settings.

    A database that is in the folder already is set aside, unless one was before: then it is what an
    interrupted move has made.
    """
    with own(state):
        source = _Place(state, elsewhere)
        with closing(source):
            if not (state / LEFT).exists():
                _set_aside(state)
            target = _Place(state)
            with closing(target):
                moved = _move(source, target)
            _set(settings, database=None, blobs=None)
    return moved


class _Place:
    """A database and its blobs, without all that a server does with them."""

    def __init__(self, state: Path, elsewhere: Elsewhere | None = None) -> None:
        self.database = open_database(state, elsewhere.database if elsewhere else "")
        try:
            self.blobs = open_blobs(state, self.database, elsewhere)
        except BaseException:
            self.database.close()
            raise

    def close(self) -> None:
        self.blobs.copies.close()
        self.database.close()


def _move(source: _Place, target: _Place) -> Moved:
    _check_target(source.database, target.database)
    query = "SELECT DISTINCT sha256 FROM needed_blobs ORDER BY 1"
    names = [name for (name,) in source.database.query(query)]
    size = sum(_copy_blob(source.blobs, target.blobs, name) for name in names)
    with target.database.transaction():
        for table in reversed(TABLES):
            target.database.execute(f"DELETE FROM {table}")  # noqa: S608 - a table of ours
        rows = sum(_copy_rows(source.database, target.database, table) for table in TABLES)
    return Moved(rows, len(names), size)


def _check_target(source: Database, target: Database) -> None:
    """Raises Refused if the target has a store already: another one, or a later state of this one."""
    if not target.query("SELECT 1 FROM boots UNION ALL SELECT 1 FROM audit LIMIT 1"):
        return
    secrets = [[secret for (secret,) in each.query("SELECT secret FROM epoch")] for each in (source, target)]
    if secrets[0] != secrets[1]:
        raise Refused("the target has the store of another server", "give an empty database or folder")
    newest = "SELECT number, revision FROM boots ORDER BY number DESC LIMIT 1"
    if [tuple(row) for row in target.query(newest)] > [tuple(row) for row in source.query(newest)]:
        raise Refused("the target has a later state of the same store", "use the target, or empty it first")


def _copy_rows(source: Database, target: Database, table: str) -> int:
    found = source.rows(table, "ORDER BY rowid")
    if not found:
        return 0
    columns = [name for name in found[0].keys() if name not in ("rowid", "row_")]  # noqa: SIM118 - no dict
    places = ", ".join("?" * len(columns))
    target.execute_many(
        f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})",  # noqa: S608 - names of ours
        [[row[name] for name in columns] for row in found],
    )
    return len(found)


def _copy_blob(source: Blobs, target: Blobs, name: str) -> int:
    """Copy a blob, unless the target has it. Returns its size. Raises DataFault if it is damaged."""
    if wrong := source.damage(name):
        raise DataFault(wrong, "run `fedserver up` once more, which repairs what it can, or restore a backup")
    target.copy(source.path(name))
    return target.size(name)


def _set_aside(state: Path) -> None:
    """Rename the database of the folder, so that no start takes it for the one that counts."""
    with disk.storing(state):
        for path in sorted(state.glob(f"{FILE}*")):
            rest = path.name.removeprefix(FILE)
            if not rest.startswith(".moved"):
                path.replace(state / f"{LEFT}{rest}")
        disk.sync_folder(state)


def _set(settings: Path, **changes: str | None) -> None:
    """Change settings in the file; None removes one. Everything else stays, except for comments."""
    with disk.storing(settings):
        text = settings.read_text() if settings.is_file() else "state: .\n"
    found = yaml.safe_load(text) or {}
    if not isinstance(found, dict):
        raise ConfigError(
            f"{settings} is not a settings file", "it consists of lines like `listen: 0.0.0.0:1`"
        )
    found = {**found, **changes}
    kept = {name: value for name, value in found.items() if value is not None}
    disk.write(settings, yaml.safe_dump(kept, sort_keys=False).encode(), 0o600)
