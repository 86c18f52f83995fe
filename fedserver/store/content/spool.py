"""Small blobs that a power cut must not undo, written one after another, so that one sync serves many.

A blob has a file of its own, and a file lasts once its bytes and its name are synced. For the results that
arrive together from many devices with a small model, that would be two syncs for each. So their bytes go into
this one file first, which is synced once for all of them, and then into files that are not synced at all. A
process that is killed loses none of them. What a power cut leaves incomplete, the next start completes from
here, before anything reads a blob.

entry: SHA-256, size as 8 bytes, bytes. An entry that is damaged or was not written to its end does not match
its SHA-256. No row refers to the blob then, since rows are committed after the sync.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from shoal.core.exchange.payload import INLINE
from shoal.core.types import Bytes
from shoal.shell.disk import storing, sync_folder

MAX_BYTES = 256 << 20
"""Bytes after which the file is emptied although some of its blobs are needed: those are synced first."""
HEADER = 32 + 8


class Spool:
    """The file at `path`, which is created when it is needed. For the store's thread only.

    held: the blobs whose files may not be synced yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = path.stat().st_size if path.is_file() else 0
        self.held: set[str] = set()

    @property
    def is_full(self) -> bool:
        return self._size > MAX_BYTES

    def entries(self) -> Iterator[tuple[str, bytes]]:
        """The names and bytes of all blobs that are here and whole."""
        if not self._size:
            return
        with storing(self._path), self._path.open("rb") as file:
            while len(header := file.read(HEADER)) == HEADER:
                sha256, size = header[:32], int.from_bytes(header[32:], "big")
                if size > INLINE:  # a header that is damaged: where the next entry begins is unknown
                    return
                data = file.read(size)
                if hashlib.sha256(data).digest() == sha256:
                    yield sha256.hex(), data

    def add(self, blobs: Mapping[str, Bytes]) -> None:
        """Write these to the disk. Raises StorageFault; after DiskFull, none of them is here."""
        with storing(self._path), self._path.open("r+b" if self._path.exists() else "x+b") as file:
            is_new = not self._size
            try:
                file.seek(self._size)
                for name, data in blobs.items():
                    file.write(bytes.fromhex(name) + len(data).to_bytes(8, "big"))
                    file.write(data)
                file.flush()
            except OSError:
                file.truncate(self._size)
                raise
            os.fsync(file.fileno())
            size = file.tell()
        if is_new:
            with storing(self._path):
                sync_folder(self._path.parent)
        self._size = size
        self.held.update(blobs)

    def forget(self, name: str) -> None:
        """A blob is not needed any more. After the last one the file is emptied."""
        self.held.discard(name)
        if self._size and not self.held:
            self.clear()

    def clear(self) -> None:
        """Empty the file. Its blobs are synced, or are not needed."""
        if self._size:
            with storing(self._path):
                os.truncate(self._path, 0)
        self._size, self.held = 0, set()
