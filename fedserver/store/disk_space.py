"""Free space on the disk of the state folder, and what happens when there is too little.

Uploads use up disk space, and the end of a round frees it. Therefore uploads are refused first, with the code
"server-full", if they would leave less free space than the low-water mark; the devices keep their results and
try again later. Everything else continues: downloads, placements, status, and reports whose blobs have
already arrived. Such a report needs only one row, and counting it is what ends the round and frees space.

If the disk fills up nevertheless, the server deletes its reserve, a file of a few megabytes. The reserve
exists because a decision of the engine must be on disk before the engine decides anything else: without it, a
full disk could stop the very transition that would end a round and delete its blobs. If the reserve is not
enough, the transition waits and is tried again until there is space; see `Storage.when_space`. No device has
seen the decision by then, so nothing is lost if the process ends while it waits. The reserve is created again
as soon as there is space for it.

A full disk does no harm, because the same write can be tried again. Any other disk error ends the process:
after a failed fsync it is unknown which bytes are on disk, and a second fsync would succeed without having
written them. The next start continues from what the write-ahead log and the hashes prove to be on disk.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from shoal.core.errors import BucketAway, DiskFull, ServerFull, TooManyFiles
from shoal.shell import disk

RESERVE = 4 << 20
"""Bytes of the reserve: enough for about a thousand transitions without their models."""


@dataclass(frozen=True)
class Wait:
    """What all runs wait for: for the line of a run, for operators, and for devices."""

    what: str
    problem: str
    said: str


def wait_for(full: DiskFull) -> Wait:
    """What has to come before work that failed with this error can be tried again."""
    if isinstance(full, BucketAway):
        return Wait(
            "the bucket of models and reports",
            f"the bucket cannot be used, and all runs wait: {full}",
            "the server cannot reach its storage",
        )
    said = "the server's disk is full, or it has too many files open"
    if isinstance(full, TooManyFiles):
        return Wait("space on the server's disk", f"no file can be opened, and all runs wait: {full}", said)
    return Wait("space on the server's disk", f"the disk is full, and all runs wait for space: {full}", said)


def is_full(error: BaseException) -> bool:
    """Whether SQLite means by this error that the disk is full. Where it opens a database, it then has no
    space for the file that its readers share."""
    return getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)


class DiskSpace:
    """The space on the disk of one state folder. Any thread may use it, except for `expecting`."""

    def __init__(self, state: Path) -> None:
        self._state, self._reserve = state, state / "reserve"
        self._expected = 0

    def free(self) -> int:
        """How many more bytes the server's user may write."""
        with disk.storing(self._state):
            found = os.statvfs(self._state)
        return found.f_bavail * found.f_frsize

    def lacks(self, low_water: int, size: int = 0) -> int:
        """How many free bytes are missing for `size` more, all uploads in progress, and the low-water
        mark."""
        return max(0, low_water + self._expected + size - self.free())

    def check(self, low_water: int, size: int) -> None:
        """Raises ServerFull if there is no space for an upload of `size` bytes."""
        if lacking := self.lacks(low_water, size):
            raise ServerFull(
                f"the server's disk needs {lacking} more free bytes for an upload of {size} bytes",
                "the server's operator can free some space; the device tries again",
            )

    @contextmanager
    def expecting(self, size: int, low_water: int) -> Iterator[Callable[[int], None]]:
        """Reserve space for an upload of `size` bytes while the block runs.

        Gives a function to call with the number of bytes of each chunk that arrived: these use disk space
        already and are no longer counted as expected. Raises ServerFull if there is no space for the upload.
        """
        self.check(low_water, size)
        left = size
        self._expected += size

        def arrived(more: int) -> None:
            nonlocal left
            self._expected -= min(more, left)
            left -= min(more, left)

        try:
            yield arrived
        finally:
            self._expected -= left

    # -- the reserve ----------------------------------------------------------------------------------------

    def hold(self, low_water: int) -> None:
        """Create the reserve, unless it exists or there is no space for it."""
        if self._reserve.exists() or self.lacks(low_water, RESERVE):
            return
        with suppress(DiskFull), disk.replacing(self._reserve) as file:
            os.posix_fallocate(file.fileno(), 0, RESERVE)

    def make_way(self) -> None:
        """At the start: delete the reserve if less than its size is free, so that the database can be
        opened."""
        if self._reserve.exists() and self.free() < RESERVE:
            self.release()

    def release(self) -> bool:
        """Delete the reserve, so that its space can be used for the next write.

        False if there was no reserve.
        """
        with disk.storing(self._reserve):
            there = self._reserve.exists()
            self._reserve.unlink(missing_ok=True)
            disk.sync_folder(self._state)
        return there
