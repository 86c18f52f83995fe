"""Checksums of bytes as they come: one that names all of them, and one of each block, which checks a part.

That of a block sums its words of 64 bits by rows of 1 KiB, and these sums with a weight each, which takes a
fifteenth of the time of SHA-256. One flipped bit always changes it. Other damage passes once in 2^63, unless
it leaves the sum of each row as it was. The weights are this process's own, so these checksums stay in
memory; what an earlier process stored is hashed once more.
"""

import hashlib
import secrets
from pathlib import Path

import numpy as np

from shoal.core.exchange.wire import MAX_CHUNK
from shoal.core.types import Bytes

ROWS, COLUMNS = 64, 128
BLOCK, SUM = 8 * ROWS * COLUMNS, 8
"""Bytes of a block, and of its checksum."""
_WEIGHTS = np.frombuffer(secrets.token_bytes(8 * ROWS), "<u8") | np.uint64(1)


class Sums:
    """Of the bytes that were added. size: how many there are."""

    def __init__(self) -> None:
        self._sha, self._blocks, self._rest = hashlib.sha256(), bytearray(), b""
        self.size = 0

    def add(self, data: Bytes) -> None:
        """The next bytes."""
        self._sha.update(data)
        self.size += len(data)
        data = b"".join((self._rest, data)) if self._rest else data
        whole = len(data) - len(data) % BLOCK
        self._blocks += blocks_of(data[:whole])
        self._rest = bytes(data[whole:])

    def add_file(self, path: Path) -> None:
        """All bytes of a file. Raises OSError."""
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(MAX_CHUNK):
                self.add(chunk)

    @property
    def sha256(self) -> str:
        """The name of all bytes."""
        return self._sha.hexdigest()

    def blocks(self) -> bytes:
        """The checksums of all blocks, the last of which may be short."""
        return bytes(self._blocks) + blocks_of(self._rest)


def blocks_of(data: Bytes) -> bytes:
    """The checksums of the blocks of these bytes, which begin with a block."""
    whole = len(data) - len(data) % BLOCK
    words = np.frombuffer(data, "<u8", whole // 8).reshape(-1, ROWS, COLUMNS)
    found: bytes = (words.sum(2) @ _WEIGHTS).tobytes()
    if whole == len(data):
        return found
    return found + blocks_of(bytes(data[whole:]).ljust(BLOCK, b"\0"))  # the short one at the end


def are_sound(data: Bytes, blocks: bytes, first: int) -> bool:
    """Whether these bytes are what block `first` and the next ones were. blocks: see `Sums.blocks`."""
    found = blocks_of(data)
    return found == blocks[first * SUM : first * SUM + len(found)]
