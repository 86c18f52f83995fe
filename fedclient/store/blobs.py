"""Blobs on the device's disk, named by their hash: models that came, results that go.

<folder>/<sha256>        complete and checked
<folder>/<sha256>.part   an interrupted download; it resumes at the last complete chunk
<folder>/spare           a result that was taken; the next one overwrites it
"""

import hashlib
import mmap
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from shoal.core.errors import BadPayload, Refused
from shoal.core.exchange.payload import BlobRef, Weights
from shoal.core.exchange.tensors import manifest_of, pack, unpack
from shoal.core.exchange.wire import CHUNK, Line
from shoal.core.types import Bytes, Tensors
from shoal.shell import crash
from shoal.shell.disk import TEMPORARY, settle, show, storing, temporary, write_early

PART = ".part"
"""The end of the name of a download that is not complete."""
SPARE = "spare"


class BlobStore:
    """The blobs in `folder`, which is created. Several processes may share it; only one of them trims."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sound: set[str] = set()
        self._line = Line()
        with storing(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def path(self, blob: BlobRef) -> Path:
        return self.folder / blob.sha256

    def has(self, blob: BlobRef) -> bool:
        """Whether the blob is here and intact. Its bytes are hashed once in the life of this object.

        A damaged one is deleted.
        """
        path = self.path(blob)
        with storing(path):
            if not path.is_file():
                return False
            if path.stat().st_size == blob.size and self._is_sound(path, blob):
                path.touch()  # the least recently used ones are deleted first
                return True
            path.unlink()
        return False

    def _is_sound(self, path: Path, blob: BlobRef) -> bool:
        if blob.sha256 not in self._sound and _hash(path, blob.size).hexdigest() == blob.sha256:
            self._sound.add(blob.sha256)
        return blob.sha256 in self._sound

    async def fetch(self, blob: BlobRef, source: Callable[[BlobRef, int], AsyncIterator[Bytes]]) -> None:
        """Download what is missing of a blob. source: its bytes from a position on (`Link.fetch`).

        Errors of `source` pass through, and the bytes so far are kept for the next attempt. Raises BadPayload
        if the bytes do not match the hash, StorageFault if the disk fails.
        """
        if self.has(blob):
            return
        part = self.path(blob).with_suffix(PART)
        with storing(part), part.open("ab") as file:
            held = min(file.tell(), blob.size) // CHUNK * CHUNK
            file.truncate(held)
            sha = _hash(part, held)
            async for chunk in source(blob, held):
                held += len(chunk)
                if held > blob.size:
                    break
                write_early(file, chunk, held - len(chunk))
                sha.update(chunk)
                crash.point("device.chunk-fetched")
            file.flush()
            if held < blob.size:
                problem = f"the download ended after {held} of {blob.size} bytes"
            elif held > blob.size or sha.hexdigest() != blob.sha256:
                part.unlink()
                problem = "the bytes do not match the hash"
            else:
                settle(file, self.path(blob))
                self._sound.add(blob.sha256)
                return
        raise BadPayload(f"blob {blob.sha256[:12]}: {problem}", "it is fetched again")

    def put(self, blob: BlobRef, data: Bytes) -> None:
        """Store the bytes of a blob, which the caller has hashed. They are not synced: what a power cut
        tears, `has` finds, and it is fetched again. Raises StorageFault."""
        if not self.has(blob):
            show(self.path(blob), data)
            self._sound.add(blob.sha256)

    def keep(self, tensors: Tensors) -> Weights:
        """Store tensors, hashed as they are written; on return they are on the disk. Raises StorageFault."""
        sha, size = hashlib.sha256(), 0
        with storing(self.folder), temporary(self.folder, spare=self.folder / SPARE) as file:
            for piece in pack(tensors):
                sha.update(piece)
                write_early(file, piece, size)
                size += len(piece)
            file.truncate()
            settle(file, self.folder / sha.hexdigest())
        # Without those that another process has deleted: this one may keep results for months.
        self._sound = {sha.hexdigest(), *(each for each in self._sound if (self.folder / each).exists())}
        return Weights(manifest_of(tensors), BlobRef(sha.hexdigest(), size))

    def load(self, weights: Weights) -> Tensors:
        """Stored tensors as views of the mapped file: nothing is read before it is used.

        Raises BadPayload when the blob is not here, or not as long as its manifest says.
        """
        path = self.path(weights.blob)
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size == 0:  # an empty file cannot be mapped
                    return unpack(weights.manifest, memoryview(b""))
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise BadPayload(f"blob {weights.blob.sha256[:12]} is not here", "fetch it first") from None
        return unpack(weights.manifest, memoryview(mapped))

    def chunks(self, blob: BlobRef, start: int) -> Iterator[bytes]:
        """The bytes of a blob that is here, from `start` on. Raises StorageFault."""
        at, began, path = start, time.monotonic(), self.path(blob)
        try:
            with storing(path), path.open("rb", buffering=0) as file:
                file.seek(start)
                while chunk := file.read(self._line.next(at, CHUNK)):
                    at += len(chunk)
                    yield chunk
        finally:
            self._line.moved(at - start, time.monotonic() - began)

    def make_room(self, wanted: Iterable[BlobRef], most: int) -> None:
        """Before these are fetched: delete the oldest blobs until all fit into `most` bytes.

        No one may write here meanwhile. Raises Refused if these do not fit even by themselves.
        """
        blobs = set(wanted)
        size = sum(blob.size for blob in blobs)
        if size > most:
            raise Refused(
                f"the models of a task have {size} bytes, and this device keeps at most {most}",
                "raise limits.kept_bytes in this device's settings",
            )
        missing = sum(blob.size for blob in blobs if not self.path(blob).is_file())
        names = [name for blob in blobs for name in (blob.sha256, f"{blob.sha256}{PART}")]
        self.trim(most - missing, names)

    def remove(self, blobs: Iterable[BlobRef]) -> None:
        """Delete these. A process that has mapped one keeps its bytes."""
        for blob in blobs:
            with storing(self.path(blob)):
                self.path(blob).unlink(missing_ok=True)
            self._sound.discard(blob.sha256)

    def retire(self, blob: BlobRef) -> None:
        """Keep the file of a result that is not needed any more, to be overwritten by the next one.

        No process may have mapped it: its bytes change.
        """
        with storing(self.path(blob)), suppress(FileNotFoundError):
            self.path(blob).rename(self.folder / SPARE)
        self._sound.discard(blob.sha256)

    def trim(self, most: int, in_use: Collection[str] = ()) -> None:
        """Delete the spare file, the oldest blobs, and unfinished files, until at most `most` bytes are kept.

        in_use: hashes of blobs to keep, whatever their size. No one may write here meanwhile.
        """
        with storing(self.folder):
            found = sorted(self.folder.iterdir(), key=_last_used, reverse=True)
            kept = sum(path.stat().st_size for path in found if path.name in in_use)
            for path in found:
                if path.name in in_use:
                    continue
                kept += path.stat().st_size
                if kept > most or path.name.startswith(TEMPORARY):
                    kept -= path.stat().st_size
                    path.unlink()
                    self._sound.discard(path.name)


def _last_used(path: Path) -> float:
    return 0.0 if path.name == SPARE else path.stat().st_mtime


def _hash(path: Path, size: int) -> "hashlib._Hash":
    """The running hash of the first `size` bytes of a file."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while size > 0 and (chunk := file.read(min(CHUNK, size))):
            sha.update(chunk)
            size -= len(chunk)
    return sha
