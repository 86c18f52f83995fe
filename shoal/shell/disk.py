"""Files that are complete or absent, even after a power failure: written under another name, synced,
renamed."""

import ctypes
import errno
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, BinaryIO, Literal

from shoal.core.errors import BadPayload, DiskFull, InUse, StorageFault, TooManyFiles
from shoal.core.types import Bytes
from shoal.shell import crash

TEMPORARY = ".writing-"
"""Prefix of the names of unfinished files, which can be deleted after a crash."""
NO_SECOND_NAMES = (errno.EPERM, errno.EOPNOTSUPP)
"""What link() reports on a file system that allows only one name per file."""
UNKNOWN_ROOM = (errno.EINVAL, errno.EOPNOTSUPP)
"""What posix_fallocate() reports on a file system that cannot set space aside."""
RIGHTS = "give the user who runs this the right to read and write there, or name another place"
HINTS = {
    errno.EACCES: RIGHTS,
    errno.EPERM: RIGHTS,
    errno.EROFS: "that disk is read-only: make it writable, or name another place",
    errno.ENOTDIR: "a part of that path is a file: name a folder",
    errno.EEXIST: "a file has that name: name a folder",
    errno.EISDIR: "that is a folder: name a file",
    errno.ENAMETOOLONG: "choose a shorter name",
}
"""What to do where the disk is well, and the path or a right is wrong."""
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
STEP = 4 << 20
"""Bytes of a large file that go to the disk together, while the next ones come."""
_WRITE = 2
"""The flag with which sync_file_range() begins to write, and waits for nothing."""


@contextmanager
def storing(path: Path) -> Iterator[None]:
    """Around work on `path`: an OSError becomes a StorageFault that names it.

    What passes by itself, a full disk and a lack of file descriptors, becomes a DiskFull and a TooManyFiles.
    An unfinished file is not named: `path` is what the caller wanted to have.
    """
    try:
        yield
    except OSError as error:
        found = str(error.filename or path)
        what = f"{path if TEMPORARY in found else found}: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(what, f"free some space on the disk of {path.parent}") from error
        if error.errno in NO_DESCRIPTORS:
            raise TooManyFiles(what, "close other connections and files, or raise `ulimit -n`") from error
        raise StorageFault(what, HINTS.get(error.errno or 0, "check the disk that it is on")) from error


def inside(folder: Path, name: str) -> Path:
    """What is to be called `name` in a folder: a name from another machine. Raises BadPayload where it leads
    elsewhere.

    Example:
        >>> inside(Path("models"), "c0")
        PosixPath('models/c0')
    """
    if name in ("", ".", "..") or "/" in name or not name.isprintable():
        raise BadPayload(f"{name[:80]!r} cannot be the name of a file", "do not trust who gave it that name")
    return folder / name


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to write that replaces `path` atomically at the end, and only if no error occurred.

    mode: its permissions from the first byte on, less the umask.
    Raises StorageFault; then the old file is still there.

    Example:
        with replacing(folder / "settings.json", mode=0o600) as file:
            file.write(data)
    """
    with storing(path), temporary(path.parent, mode) as file:
        yield file
        settle(file, path)


def write(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Replace `path` by `data` atomically. Raises StorageFault; then the old file is still there."""
    with replacing(path, mode) as file:
        file.write(data)


def show(path: Path, data: bytes | memoryview) -> None:
    """Replace `path` by `data` atomically, for who reads it while this machine runs: nothing is synced, and
    after a power cut it may be torn or missing. Raises StorageFault."""
    with storing(path), temporary(path.parent) as file:
        file.write(data)
        file.flush()
        Path(file.name).rename(path)


def write_together(*files: tuple[Path, bytes]) -> None:
    """Replace these files one after the other, once the bytes of all are on disk: where one of them does not
    fit, none is replaced. A crash may leave only the first ones replaced. Raises StorageFault."""
    with storing(files[0][0]), ExitStack() as unfinished:
        ready = []
        for path, data in files:
            file = unfinished.enter_context(temporary(path.parent))
            file.write(data)
            _sync(file)
            ready.append((Path(file.name), path))
        for source, target in ready:
            move(source, target)


def check_room(folder: Path, size: int) -> None:
    """Raises DiskFull if `size` more bytes do not fit into `folder` now."""
    with storing(folder), temporary(folder) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, max(size, 1))
        except OSError as error:
            if error.errno not in UNKNOWN_ROOM:
                raise


@contextmanager
def temporary(folder: Path, mode: int = 0o666, spare: Path | None = None) -> Iterator[BinaryIO]:
    """A new file to write in `folder`, which is created; deleted at the end unless it was settled.

    spare: a file there that is overwritten instead, if it exists: its pages are in memory already, and its
    place is on the disk. Bytes after the new ones stay until the file is truncated.
    """
    make_folder(folder)
    path = folder / f"{TEMPORARY}{secrets.token_hex(8)}"
    how: Literal["xb", "r+b"] = "xb"
    if spare is not None:
        with suppress(FileNotFoundError):
            spare.rename(path)
            how = "r+b"
    try:
        with open(path, how, opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
    finally:
        path.unlink(missing_ok=True)


def sweep(folder: Path) -> None:
    """Remove the unfinished files that a crash left in `folder`. No process may be writing there."""
    with storing(folder):
        for path in folder.glob(f"{TEMPORARY}*"):
            path.unlink()


def write_early(file: BinaryIO, data: Bytes, start: int) -> None:
    """Write to a file that may be large, and let each `STEP` go to the disk at once: else all of them go when
    the file is synced, and everything waits for that. start: where in the file that is. Raises OSError."""
    file.write(data)
    begun, whole = start - start % STEP, (start + len(data)) // STEP * STEP
    if whole > begun and _begin is not None:  # if that fails, the sync does, too
        _begin(file.fileno(), ctypes.c_int64(begun), ctypes.c_int64(whole - begun), _WRITE)


_begin = getattr(ctypes.CDLL(None), "sync_file_range", None)  # only Linux has it


def settle(file: BinaryIO, path: Path) -> None:
    """Give the open `file` the name `path` durably: its bytes and its name are on disk on return."""
    _sync(file)
    move(Path(file.name), path)


def _sync(file: BinaryIO) -> None:
    file.flush()
    crash.point("disk.written")
    os.fsync(file.fileno())
    crash.point("disk.synced")


def move(source: Path, target: Path) -> None:
    """Rename a file whose bytes are on disk already; its new name is on disk too on return."""
    make_folder(target.parent)
    source.rename(target)
    crash.point("disk.renamed")
    sync_folder(target.parent)


def share(source: Path, target: Path) -> None:
    """Give a file whose bytes are on disk already a second name, which is on disk too on return.

    A file that already has the name `target` is replaced atomically. On a file system without hard links, the
    source is renamed.
    """
    make_folder(target.parent)
    if not (target.exists() and source.samefile(target)):
        name = target.with_name(f"{target.name}.new") if target.exists() else target
        if name != target:
            name.unlink(missing_ok=True)  # of a process that was killed here
        try:
            os.link(source, name)
        except OSError as error:
            if error.errno not in NO_SECOND_NAMES:
                raise
            source.rename(name)
        if name != target:
            name.rename(target)
    crash.point("disk.renamed")
    sync_folder(target.parent)


def make_folder(folder: Path) -> None:
    """Create a folder that only this user can read, durably. Raises StorageFault.

    A folder that exists may have been created by a process that was killed before its name was synced. So the
    name of each folder is synced once by this process, even if another process created the folder.
    """
    with storing(folder):
        if folder.is_dir():
            if folder not in _lasting:
                with suppress(PermissionError):  # the parent is not ours, so we did not create the folder
                    sync_folder(folder.parent)
        else:
            make_folder(folder.parent)
            folder.mkdir(mode=0o700, exist_ok=True)
            sync_folder(folder.parent)
    _lasting.add(folder)


_lasting: set[Path] = set()
"""Folders whose names this process knows to be on disk."""


def sync(path: Path) -> None:
    """The bytes of a file, and its name, are on disk on return."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    make_folder(path.parent)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync the names in `folder` to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_out_of_descriptors() -> bool:
    """Whether this process can open no file at the moment, for callers whose library does not say why."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in NO_DESCRIPTORS
    return False


def lock(path: Path) -> IO[str]:
    """An exclusive lock as long as the returned file is open; the file holds the process id of the owner.

    Raises InUse when another process has the lock.
    """
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        file.close()
        raise InUse(
            f"{path.parent} is in use by another process ({owner})",
            "stop that process first, or use another state folder",
        ) from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def lock_within(path: Path, seconds: float) -> IO[str]:
    """The same, where others have the lock for moments. Raises InUse if one still has it after `seconds`."""
    until = time.monotonic() + seconds
    while True:
        try:
            return lock(path)
        except InUse:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
