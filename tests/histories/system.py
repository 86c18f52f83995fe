"""What the product asks of its machine, answered by the simulated one: time, files, random names, channels.

The hooks sit at the operating system's own calls, below `shoal.shell.disk`, so that no code can go past
them. They see only files below the world's folder.
"""

import io
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from grpc import aio

import fedclient.store.blobs
import fedserver.coordinator.visits.transfer
import fedserver.store.content.copies
import fedserver.store.disk_space
from fedserver.coordinator import combining
from tests.histories.database import connecting
from tests.histories.disk import Crashed, Disk, is_dead
from tests.histories.loop import SimLoop
from tests.histories.processes import current

EPOCH = 1.9e9
"""Seconds since 1970 at which every history begins, by a clock that is right."""

_open, _os_open, _fsync, _utime, _statvfs = io.open, os.open, os.fsync, os.utime, os.statvfs
_rename, _link, _unlink, _mkdir = os.rename, os.link, os.unlink, os.mkdir


@contextmanager
def simulated(
    loop: SimLoop, disks: Mapping[Path, Disk], chance: Random, chunk: int, channel: Callable[..., Any]
) -> Iterator[None]:
    """Inside, everything runs on the simulated machines.

    disks: by the root of each. chunk: bytes of a transfer at a time. channel: makes gRPC's channels.
    """
    files = _Files(loop, disks)
    replaced: dict[tuple[Any, str], Any] = {
        (time, "time"): lambda: EPOCH + loop.now + (0.0 if current() is None else current().clock_error),  # type: ignore[union-attr]
        (time, "monotonic"): lambda: loop.now + (0.0 if current() is None else current().uptime),  # type: ignore[union-attr]
        (secrets, "token_hex"): lambda size: chance.randbytes(size).hex(),
        (secrets, "token_urlsafe"): lambda size: chance.randbytes(size).hex(),
        (io, "open"): files.open,
        (os, "open"): files.os_open,
        (os, "fsync"): files.fsync,
        (os, "rename"): files.rename,
        (os, "replace"): files.rename,
        (os, "link"): files.link,
        (os, "unlink"): files.unlink,
        (os, "remove"): files.unlink,
        (os, "mkdir"): files.mkdir,
        (os, "utime"): files.utime,
        (sqlite3, "connect"): connecting(files.disk),
        (aio, "insecure_channel"): channel,
        (combining, "in_thread"): lambda work: loop.run_in_executor(None, work),
        (os, "statvfs"): files.statvfs,
        (fedserver.store.disk_space, "RESERVE"): 512,
        (fedserver.store.content.copies, "CHUNK"): chunk,
        (fedserver.coordinator.visits.transfer, "CHUNK"): chunk,
        (fedclient.store.blobs, "CHUNK"): chunk,
    }
    patches = [patch.object(where, name, new) for (where, name), new in replaced.items()]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


class _Files:
    def __init__(self, loop: SimLoop, disks: Mapping[Path, Disk]) -> None:
        self._loop = loop
        self._base = f"{next(iter(disks)).parent}{os.sep}"
        self._disks = {root.name: disk for root, disk in disks.items()}

    def disk(self, path: Any) -> Disk | None:
        """The disk of the machine that a path belongs to; None for what is outside the world, and
        for the file beside a folder with the keys that were revoked, which is on a disk that never fails."""
        text = "" if isinstance(path, int) else os.fspath(path)
        if not text.startswith(self._base):
            return None
        return self._disks.get(text[len(self._base) :].partition(os.sep)[0])

    def now(self, path: Any) -> None:
        """A file's time is the world's, so that "the oldest" means the same each time."""
        _utime(path, (EPOCH + self._loop.now,) * 2)

    def open(self, file: Any, mode: str = "r", buffering: int = -1, *more: Any, **named: Any) -> Any:
        disk = self.disk(file)
        if disk is None or not set(mode) & set("wax+"):
            return _open(file, mode, buffering, *more, **named)
        path = Path(file)
        new = not path.exists()
        disk.before("open", path, grows=new)
        raw = _SimFile(self, disk, path, mode.replace("b", "").replace("t", ""))
        self.now(path)
        if new:
            disk.forget(path)
        disk.after("open", path)
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)  # type: ignore[type-var]
        return buffered if "b" in mode else io.TextIOWrapper(buffered, write_through=True)

    def os_open(self, file: Any, flags: int, mode: int = 0o777, **named: Any) -> int:
        disk = self.disk(file)
        if disk is None or not flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            return _os_open(file, flags, mode, **named)
        disk.before("create", Path(file), grows=True)
        descriptor = _os_open(file, flags, mode, **named)
        self.now(file)
        return descriptor

    def fsync(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        disk = self.disk(path)
        if disk is None:
            _fsync(descriptor)
            return
        disk.before("sync", path, grows=False)
        if path.exists():
            disk.sync(path)
        disk.after("sync", path)

    def rename(self, source: Any, target: Any) -> None:
        disk = self.disk(target)
        if disk is None:
            _rename(source, target)
            return
        disk.before("rename", Path(target), grows=False)
        _rename(source, target)
        disk.renamed(Path(source), Path(target))
        disk.after("rename", Path(target))

    def link(self, source: Any, target: Any) -> None:
        disk = self.disk(target)
        if disk is None:
            _link(source, target)
            return
        disk.before("link", Path(target), grows=True)
        _link(source, target)
        disk.after("link", Path(target))

    def unlink(self, path: Any, **named: Any) -> None:
        disk = self.disk(path)
        if disk is None:
            _unlink(path, **named)
            return
        disk.before("remove", Path(path), grows=False)
        _unlink(path)
        disk.after("remove", Path(path))

    def mkdir(self, path: Any, mode: int = 0o777, **named: Any) -> None:
        disk = self.disk(path)
        if disk is None:
            _mkdir(path, mode, **named)
            return
        disk.before("mkdir", Path(path), grows=True)
        _mkdir(path, mode)
        disk.after("mkdir", Path(path))

    def statvfs(self, path: Any) -> os.statvfs_result:
        disk, found = self.disk(path), _statvfs(path)
        if disk is None or not disk.full:
            return found
        return os.statvfs_result((*found[:3], 0, 0, *found[5:]))

    def utime(self, path: Any, times: Any = None, **named: Any) -> None:
        if times is None and not named and self.disk(path) is not None:
            self.now(path)
        else:
            _utime(path, times, **named)


class _SimFile(io.FileIO):
    """A file that is written through its disk. What a dead process still had in its buffers is gone."""

    def __init__(self, files: _Files, disk: Disk, path: Path, mode: str) -> None:
        super().__init__(path, mode)
        self._files, self._disk, self._path, self._process = files, disk, path, current()
        if self._process is not None:
            self._process.open.append(self)

    def write(self, data: Any) -> int:
        if is_dead() or (self._process is not None and not self._process.alive):
            return len(data)
        try:
            self._disk.before("write", self._path, grows=True)
        except Crashed:
            return len(data)
        except OSError:
            super().write(bytes(data)[: len(data) // 2])
            raise
        written = super().write(data)
        self._files.now(self.fileno())
        return written

    def truncate(self, size: int | None = None) -> int:
        if is_dead() or (self._process is not None and not self._process.alive):
            return size or 0
        return super().truncate(size)


__all__ = ["simulated"]
