"""Back up a state folder while its server is running, and restore a state folder from a backup.

A backup is a folder. It holds the database as it was at one moment (copied by SQLite's backup API), the blobs
that its rows refer to, and all other files of the state folder that are not temporary, such as keys. Blobs
never change, so on the same disk they are hard links; copy the backup to another machine to be protected from
the loss of this one. A backup and a restored folder get their names only when they are complete.
"""

import hashlib
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from fedserver.store.engines.sqlite import SqliteDatabase
from fedserver.store.identities.audit import AuditLog
from fedserver.store.identities.tokens import Tokens
from fedserver.store.store import LOCK
from shoal.core.errors import ConfigError, StorageFault, Unavailable
from shoal.shell import crash, disk

DATABASE, FACTS = "shoal.db", "backup.json"
PASSING = {
    LOCK,
    "address",
    "join-address",
    "reserve",
    "operator.sock",
    "tmp",
    "partial",
    "spool",
    "quarantine",
    "blobs",
    "copies",
    FACTS,
}
"""The entries of a state folder that are temporary, or that are copied separately."""
TRIES = 20
"""How many times a backup starts over because a round ended and its blobs were deleted meanwhile."""
CHUNK = 1 << 20


@dataclass(frozen=True)
class Facts:
    """What a backup holds.

    made: seconds since 1970. start, revision: the point in the server's history. size: of the blobs, in
    bytes.
    """

    made: float
    start: int
    revision: int
    runs: int
    blobs: int
    size: int


def backup(state: Path, target: Path) -> Facts:
    """Copy the state folder `state`, whose server may be running, to `target`, which must not exist.

    Raises ConfigError, StorageFault, and Unavailable if rounds kept ending while their blobs were copied.
    """
    check_state(state)
    if target.is_relative_to(state):
        raise ConfigError(f"{target} is inside the folder to back up", "choose a folder outside it")
    with _made_whole(target) as copy:
        for path in _lasting(state):
            _copy_tree(path, copy / path.name)
        # The database is copied before the blobs, while the server works. If a round ends in between, blobs
        # that the copied rows refer to are deleted; a newer copy of the database no longer refers to them.
        for _ in range(TRIES):
            with closing(sqlite3.connect(state / DATABASE)) as source:
                _copy_database(source, copy / DATABASE)
            if _took_blobs(state, copy):
                break
        else:
            raise Unavailable("rounds ended faster than their blobs could be copied", "try again")
        facts = _facts(copy)
        disk.write(copy / FACTS, json.dumps(asdict(facts), indent=2).encode())
        crash.point("server.backup-copied")
    return facts


def restore(source: Path, state: Path) -> Facts:
    """Restore a backup to the state folder `state`, which must be empty or not exist.

    Every blob is hashed and compared with its name. Raises ConfigError, and StorageFault if the backup is
    damaged; `state` is not created then.
    """
    if not (source / FACTS).is_file():
        raise ConfigError(f"{source} is not a backup", "give a folder that `fedserver backup` created")
    if state.is_dir() and not any(state.iterdir()):
        state.rmdir()
    with _made_whole(state) as copy:
        for path in (source / DATABASE, *_lasting(source)):
            if path.exists() and not (copy / path.name).exists():
                _copy_tree(path, copy / path.name)
        with closing(SqliteDatabase(copy / DATABASE)) as database:
            Tokens(database, AuditLog(database, copy)).revoke_open()
        for name in _needed(copy):
            _copy_file(_blob(source, name), _blob(copy, name))
            if _hash_of(_blob(copy, name)) != name:
                raise StorageFault(f"{_blob(source, name)} is damaged", "use another backup")
        crash.point("server.restored")
    return Facts(**json.loads((source / FACTS).read_bytes()))


def check_state(state: Path) -> None:
    """Raises ConfigError if no server has used this folder."""
    if not (state / DATABASE).is_file():
        raise ConfigError(f"{state} is not a server's state folder", "give the state folder with --state")


@contextmanager
def _made_whole(target: Path) -> Iterator[Path]:
    """Give a temporary folder to fill. It is synced and renamed to `target` only if no error occurred."""
    if target.exists():
        raise ConfigError(f"{target} already exists", "choose the name of a folder that does not exist")
    copy = target.parent / f"{disk.TEMPORARY}{target.name}"
    with disk.storing(target):
        disk.make_folder(target.parent)
        shutil.rmtree(copy, ignore_errors=True)  # left by a process that was killed
        disk.make_folder(copy)
        try:
            yield copy
            for folder, _, _ in os.walk(copy):
                disk.sync_folder(Path(folder))
            disk.move(copy, target)
        finally:
            shutil.rmtree(copy, ignore_errors=True)


def _lasting(folder: Path) -> list[Path]:
    """The entries of a state folder to copy besides the database and the blobs."""
    return [
        path
        for path in sorted(folder.iterdir())
        if path.name not in PASSING and not path.name.startswith((DATABASE, disk.TEMPORARY))
    ]


def _copy_tree(source: Path, target: Path) -> None:
    if source.is_dir():
        disk.make_folder(target)
        for path in sorted(source.iterdir()):
            _copy_tree(path, target / path.name)
    elif source.is_file():
        _copy_file(source, target)


def _copy_file(source: Path, target: Path) -> None:
    disk.make_folder(target.parent)
    with source.open("rb") as old, target.open("xb") as new:
        shutil.copyfileobj(old, new, CHUNK)
        shutil.copymode(source, target)
        new.flush()
        os.fsync(new.fileno())


def _copy_database(source: sqlite3.Connection, path: Path) -> None:
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    try:
        with closing(sqlite3.connect(path)) as copy:
            source.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")  # a single file, without a write-ahead log beside it
        _sync(path)
    except sqlite3.Error as error:
        raise StorageFault(f"{path}: {error}", "check both disks") from error


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _took_blobs(state: Path, copy: Path) -> bool:
    """Link or copy the blobs that the copied rows refer to. False if one was deleted with its round."""
    for name in _needed(copy):
        target = _blob(copy, name)
        if target.exists():
            continue
        disk.make_folder(target.parent)
        try:
            with suppress(OSError):
                os.link(_blob(state, name), target)
            if not target.exists():  # a hard link cannot lead to another disk
                _copy_file(_blob(state, name), target)
            else:  # what came inside of a report is synced where it is linked
                _sync(target)
        except FileNotFoundError:
            return False
    return True


def _blob(folder: Path, name: str) -> Path:
    return folder / "blobs" / name[:2] / name


def _needed(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / DATABASE)) as database:
        return [name for (name,) in database.execute("SELECT DISTINCT sha256 FROM needed_blobs ORDER BY 1")]


def _facts(folder: Path) -> Facts:
    with closing(sqlite3.connect(folder / DATABASE)) as database:
        newest = "SELECT number, revision FROM boots ORDER BY number DESC LIMIT 1"
        start, revision = database.execute(newest).fetchone() or (0, 0)
        (runs,) = database.execute("SELECT count(*) FROM runs").fetchone()
    names = _needed(folder)
    size = sum(_blob(folder, name).stat().st_size for name in names)
    return Facts(time.time(), start, revision, runs, len(names), size)


def _hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
