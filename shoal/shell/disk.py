"""Files that are whole or not there, also after a power cut: written beside, synced, then renamed."""

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO

from shoal.core.errors import ConfigError, DiskFull, StorageFault
from shoal.shell import crash

TEMPORARY = ".writing-"
"""How the names of unfinished files begin: after a crash they may go."""
NO_SECOND_NAMES = (errno.EPERM, errno.EOPNOTSUPP)
"""What a file system says in which a file has one name alone."""


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Around work on `path`: an OSError becomes a StorageFault that names it, a full disk a DiskFull."""
    try:
        yield
    except OSError as error:
        what = f"{error.filename or path}: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(what, "free some space on the state folder's disk") from error
        raise StorageFault(what, "look at the state folder's disk") from error


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` in one step at the end, and only if nothing went wrong.

    mode: who may read and write it, from its first byte on, less what the umask takes away.
    Raises StorageFault; then the old file is still there.
    """
    with storing(path), temporary(path.parent, mode) as file:
        yield file
        settle(file, path)


def write(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Put `data` in the place of `path` in one step. Raises StorageFault; then the old file is there."""
    with replacing(path, mode) as file:
        file.write(data)


@contextmanager
def temporary(folder: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A new file to write in `folder`, which is made; gone at the end unless it was settled."""
    make_folder(folder)
    path = folder / f"{TEMPORARY}{secrets.token_hex(8)}"
    try:
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
    finally:
        path.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove what a crash left unfinished in `folder`. Nobody may be writing there."""
    with storing(folder):
        for path in folder.glob(f"{TEMPORARY}*"):
            path.unlink()


def settle(file: BinaryIO, path: Path) -> None:
    """Give the open `file` the name `path`, for good: its bytes and its name are on the disk on return."""
    file.flush()
    crash.point("disk.written")
    os.fsync(file.fileno())
    crash.point("disk.synced")
    move(Path(file.name), path)


def move(source: Path, target: Path) -> None:
    """Rename a file whose bytes are on the disk already; its new name is there too on return."""
    make_folder(target.parent)
    source.rename(target)
    crash.point("disk.renamed")
    sync_folder(target.parent)


def share(source: Path, target: Path) -> None:
    """Give a file whose bytes are on the disk already a second name, which is there too on return.

    A file that has the name `target` keeps it. Where no file has two names, this one loses its first.
    """
    make_folder(target.parent)
    try:
        os.link(source, target)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in NO_SECOND_NAMES:
            raise
        source.rename(target)
    crash.point("disk.renamed")
    sync_folder(target.parent)


def make_folder(folder: Path) -> None:
    """Make a folder that only this user can look into, for good.

    One that is there may have been made by a process that was killed before the name was to last: so each is
    made sure of once, whoever made it.
    """
    if folder.is_dir():
        if folder not in _lasting:
            with suppress(PermissionError):  # of a parent that is not ours: then we did not make it
                sync_folder(folder.parent)
    else:
        make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)
    _lasting.add(folder)


_lasting: set[Path] = set()
"""Folders whose names this process knows to last."""


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(path: Path) -> IO[str]:
    """An exclusive lock for as long as the returned file is open; others read in it which process has it.

    Raises ConfigError when another has it.
    """
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        file.close()
        raise ConfigError(
            f"{path.parent} is in use by another process ({owner})",
            "stop that one first, or give this one another state folder",
        ) from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file
