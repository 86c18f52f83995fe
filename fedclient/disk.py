"""Files that are whole or not there, also after a power cut: written beside, synced, then renamed."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from fedclient.faults import StorageFault

TEMPORARY = ".writing-"
"""How the names of unfinished files begin: after a crash they may go."""


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Around work on `path`: an OSError becomes a StorageFault that names it."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        mend = "free some space, or move `state` to another disk" if full else "look at the folder `state`"
        raise StorageFault(f"{error.filename or path}: {error.strerror or error}", mend) from error


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` in one step at the end, and only if nothing went wrong.

    Raises StorageFault; then the old file is still there.
    """
    with storing(path), temporary(path.parent) as file:
        yield file
        settle(file, path)


@contextmanager
def temporary(folder: Path) -> Iterator[BinaryIO]:
    """A file to write in `folder`, which is made; gone at the end unless it was settled."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{TEMPORARY}{secrets.token_hex(8)}"
    try:
        with path.open("xb") as file:
            yield file
    finally:
        path.unlink(missing_ok=True)


def settle(file: BinaryIO, path: Path) -> None:
    """Give the open `file` the name `path`, for good: its bytes and its name are on the disk on return."""
    file.flush()
    os.fsync(file.fileno())
    Path(file.name).rename(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` last."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(path: Path, data: bytes) -> None:
    """Put `data` in the place of `path` in one step. Raises StorageFault; then the old file is there."""
    with replacing(path) as file:
        file.write(data)
