"""Room on the state folder's disk, and what happens when there is none.

Bytes come in by uploads, and go when a round is over. So it is uploads that are refused first: while fewer
than the low-water mark would stay free, with the code "server-full", and devices keep their results and come
again. Everything else goes on: downloads, placements, status, and reports whose blobs are here already, for
a report needs one row, and counting it is what ends the round and frees the disk.

Below that lies a reserve, a file of a few megabytes that is deleted when a transition does not fit: what the
engine has decided must be written before anything else is decided. If even that does not do, the transition
waits and is tried again until there is room; see `Storage.when_space`. Nothing was told to anybody
meanwhile, so nothing is lost if the process ends there. The reserve is put back when there is room for it.

A full disk has harmed nothing, for the same write can be tried again. Any other error has: after a failed
fsync nobody knows what is on the disk, and a second one would succeed without having written. So that ends
the process, and the next start goes on from what the log and the hashes prove.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shoal.core.errors import DiskFull, ServerFull
from shoal.shell import disk

RESERVE = 4 << 20
"""Bytes of the reserve: some thousand transitions without their models."""


class DiskSpace:
    """The space on the disk of one state folder. For any thread, except `expecting`."""

    def __init__(self, state: Path) -> None:
        self._state, self._reserve = state, state / "reserve"
        self._expected = 0

    def free(self) -> int:
        """Bytes that this user may still write."""
        with disk.storing(self._state):
            found = os.statvfs(self._state)
        return found.f_bavail * found.f_frsize

    def lacks(self, low_water: int, size: int = 0) -> int:
        """Bytes that are missing to take `size` more, all uploads that are under way, and the mark."""
        return max(0, low_water + self._expected + size - self.free())

    def check(self, low_water: int, size: int) -> None:
        """Raises ServerFull when an upload of `size` bytes does not fit."""
        if lacking := self.lacks(low_water, size):
            raise ServerFull(
                f"the server's disk lacks {lacking} bytes to take an upload of {size}",
                "its operator can free some; the upload is tried again",
            )

    @contextmanager
    def expecting(self, size: int, low_water: int) -> Iterator[Callable[[int], None]]:
        """Around an upload of `size` bytes; call what it gives with the bytes of each piece that came.

        Raises ServerFull when so much does not fit.
        """
        self.check(low_water, size)
        left = size
        self._expected += size

        def came(more: int) -> None:
            nonlocal left
            self._expected -= min(more, left)
            left -= min(more, left)

        try:
            yield came
        finally:
            self._expected -= left

    # -- the reserve ----------------------------------------------------------------------------------------

    def hold(self, low_water: int) -> None:
        """Put the reserve there, if it is not and there is room for it."""
        if self._reserve.exists() or self.lacks(low_water, RESERVE):
            return
        with suppress(DiskFull), disk.replacing(self._reserve) as file:
            os.posix_fallocate(file.fileno(), 0, RESERVE)

    def make_way(self) -> None:
        """At a start: give the reserve away where there is no room for even so much."""
        if self._reserve.exists() and self.free() < RESERVE:
            self.release()

    def release(self) -> bool:
        """Give the reserve's room to whoever writes next. False when there was no reserve."""
        with disk.storing(self._reserve):
            there = self._reserve.exists()
            self._reserve.unlink(missing_ok=True)
            disk.sync_folder(self._state)
        return there
