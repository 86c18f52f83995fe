"""One upload of a blob: bytes are hashed as they are written, and get their name when all have arrived."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from fedserver.store.content.sums import Sums
from shoal.core.errors import BadPayload, Unavailable
from shoal.core.exchange.payload import BlobRef
from shoal.core.exchange.wire import CHUNK
from shoal.core.types import Bytes
from shoal.shell import crash
from shoal.shell.disk import settle, storing, write_early


class Upload:
    """One upload that is being received. A later one of the same blob closes it, and one of another blob may
    delete its file: see `Blobs.receive`. Anyone who goes on with it gets Unavailable then.

    blocks: gets the checksums of its blocks under its name, once the bytes are verified.
    turn: held while a later upload replaces this one, and while the bytes are verified and get their final
    name, so that no other upload writes to the file in between.
    """

    def __init__(
        self, part: Path, target: Path, blob: BlobRef, start: int, turn: Lock, blocks: dict[str, bytes]
    ) -> None:
        self._part, self._target, self._blob, self._turn = part, target, blob, turn
        self._blocks = blocks
        self.sums = Sums()
        self._file = part.open("r+b")
        while self.held < start and (chunk := self._file.read(min(CHUNK, start - self.held))):
            self.sums.add(chunk)
        self._file.truncate(start)

    @property
    def held(self) -> int:
        """How many bytes have arrived."""
        return self.sums.size

    def append(self, *chunks: Bytes) -> None:
        """Write the next bytes. Raises BadPayload if they exceed the announced size."""
        for chunk in chunks:
            with self._writing():
                if self.held + len(chunk) > self._blob.size:
                    self._spoil()
                    raise BadPayload(f"an upload is longer than the announced {self._blob.size} bytes")
                write_early(self._file, chunk, self.held)
            crash.point("server.chunk-written")
            self.sums.add(chunk)

    def finish(self) -> int:
        """Sync the bytes, and verify them if all have arrived.

        Returns how many there are; raises BadPayload.
        """
        with self._turn, self._writing():
            if self._file.closed:
                raise ValueError
            if self.held < self._blob.size:
                self._sync()
            elif self.sums.sha256 == self._blob.sha256:
                # `settle` syncs the bytes before it renames the file, and the folder after it. The other way
                # around, a power failure could leave a file whose name promises bytes that were never
                # written.
                settle(self._file, self._target)
                self._blocks[self._blob.sha256] = self.sums.blocks()
                crash.point("server.upload-whole")
            else:
                self._part.unlink(missing_ok=True)
                raise BadPayload(
                    f"the {self.held} uploaded bytes do not match blob {self._blob.sha256[:12]}",
                    "they were damaged in transit; upload them again from the beginning",
                )
        return self.held

    def _spoil(self) -> None:
        """Delete the bytes that arrived. Raises ValueError if a later upload has taken over the file."""
        with self._turn:
            if self._file.closed:
                raise ValueError
            self._part.unlink(missing_ok=True)

    def _sync(self) -> None:
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError:
            self._part.unlink(missing_ok=True)  # after a failed fsync it is unknown which bytes are on disk
            raise

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with storing(self._part):
            try:
                yield
            except (ValueError, FileNotFoundError):  # its file was closed, or deleted to make room
                raise Unavailable(
                    "another upload has taken the place of this one", "ask how much was uploaded"
                ) from None

    def close(self) -> None:
        """Stop receiving. The bytes that arrived stay for another attempt."""
        with suppress(OSError):  # closing writes buffered bytes, which a full disk may refuse again
            self._file.close()
