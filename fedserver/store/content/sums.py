"""Checksums of bytes as they come: one that names all of them, and one of each block, which checks a part.

Blocks have Poly1305 (Bernstein, The Poly1305-AES Message-Authentication Code, FSE 2005), which takes a sixth
of the time of SHA-256, and lets a damaged block pass once in 2^90 at most. Its key is this process's own, so
the checksums of blocks stay in memory; what an earlier process stored is hashed once more.
"""

import hashlib
import secrets
from pathlib import Path

from cryptography.hazmat.primitives.poly1305 import Poly1305

from shoal.core.exchange.wire import MAX_CHUNK
from shoal.core.types import Bytes

BLOCK, SUM = 1 << 16, 16
"""Bytes of a block, and of its checksum."""
_KEY = secrets.token_bytes(32)


class Sums:
    """Of the bytes that were added. size: how many there are."""

    def __init__(self) -> None:
        self._sha, self._of_block, self._blocks = hashlib.sha256(), Poly1305(_KEY), bytearray()
        self.size = 0

    def add(self, data: Bytes) -> None:
        """The next bytes."""
        self._sha.update(data)
        rest = memoryview(data)
        while len(rest):
            part = rest[: BLOCK - self.size % BLOCK]
            self._of_block.update(part)
            self.size, rest = self.size + len(part), rest[len(part) :]
            if self.size % BLOCK == 0:
                self._end_block()

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
        """The checksums of all blocks, the last of which may be short. Nothing can be added after that."""
        if self.size % BLOCK:
            self._end_block()
        return bytes(self._blocks)

    def _end_block(self) -> None:
        self._blocks += self._of_block.finalize()
        self._of_block = Poly1305(_KEY)


def blocks_of(data: Bytes) -> bytes:
    """The checksums of the blocks of these bytes, which begin with a block."""
    return b"".join(Poly1305.generate_tag(_KEY, data[at : at + BLOCK]) for at in range(0, len(data), BLOCK))


def are_sound(data: Bytes, blocks: bytes, first: int) -> bool:
    """Whether these bytes are what block `first` and the next ones were. blocks: see `Sums.blocks`."""
    return blocks_of(data) == blocks[first * SUM : (first - -len(data) // BLOCK) * SUM]
