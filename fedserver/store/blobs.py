"""Bytes by their hash on the server's disk.

blobs/<aa>/<sha256>               whole, checked, synced: the only ones that the database speaks of
quarantine/<sha256>               were among them, and are not what their names say any more
partial/<device>/<sha256>.part    an upload that is under way or was cut off
partial/<device>/<sha256>         an upload that is whole and checked; it stays until its report counts, for a
                                  crash before that must not cost the device a second upload
tmp/                              files that are being written
"""

import errno
import hashlib
import mmap
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from weakref import WeakValueDictionary

from fedserver.store.database import Database
from shoal.core.errors import BadPayload, DiskFull, NotFound, Unavailable
from shoal.core.exchange.payload import BlobRef, Weights
from shoal.core.exchange.tensors import Lazy, Manifest, layout, manifest_of, pack, unpack
from shoal.core.exchange.wire import CHUNK
from shoal.core.types import Array, DeviceId, RunId, Tensors
from shoal.shell import crash
from shoal.shell.disk import make_folder, move, settle, share, storing, temporary

TURNS = 64
"""Locks that all uploads share, by the name of what they write: few wait for another's, and none is kept."""


class Blobs:
    """The blobs of a state folder. Which of them are needed is the business of `References`."""

    def __init__(self, state: Path) -> None:
        self._blobs, self._partial, self._tmp = state / "blobs", state / "partial", state / "tmp"
        self._quarantine = state / "quarantine"
        self._sound: set[str] = set()
        self._receiving = WeakValueDictionary[Path, Upload]()
        self._turns = tuple(Lock() for _ in range(TURNS))
        with storing(state):
            for folder in (self._blobs, self._partial, self._tmp):
                make_folder(folder)

    def path(self, sha256: str) -> Path:
        return self._blobs / sha256[:2] / sha256

    def keep(self, tensors: Tensors) -> Weights:
        """Store tensors, hashed as they are written; on return they are on the disk. Raises StorageFault."""
        sha, size = hashlib.sha256(), 0
        with storing(self._tmp), temporary(self._tmp) as file:
            for piece in pack(tensors):
                sha.update(piece)
                size += file.write(piece)
            if not self.path(sha.hexdigest()).is_file():
                settle(file, self.path(sha.hexdigest()))
        return Weights(manifest_of(tensors), BlobRef(sha.hexdigest(), size))

    def load(self, weights: Weights) -> Tensors:
        """Stored tensors as views of the mapped file: nothing is read before it is used, nothing copied.

        They stay usable when the blob is deleted. Raises NotFound, or BadPayload when the size is wrong.
        """
        return unpack(weights.manifest, mapped(self.path(weights.blob.sha256)))

    def remove(self, names: Iterable[str]) -> None:
        """Delete blobs that nobody needs any more."""
        for name in names:
            self._sound.discard(name)
            with storing(self.path(name)):
                self.path(name).unlink(missing_ok=True)

    def clean_up(self, needed: Collection[str], devices: Collection[DeviceId]) -> tuple[int, int]:
        """Delete what a crash left, temporary files too. Returns how many files that were, and their bytes.

        Blobs not in `needed` go, and uploads of others than `devices` or of reports that count.
        """
        doomed = [path for path in self._blobs.glob("??/*") if path.name not in needed]
        doomed += self._tmp.iterdir()
        doomed += [
            path
            for path in self._partial.glob("*/*")
            if path.parent.name not in devices or (path.name in needed and self._is_blob(path))
        ]
        freed = sum(path.stat().st_size for path in doomed if path.stat().st_nlink == 1)
        with storing(self._blobs):
            for path in doomed:
                path.unlink()
        return len(doomed), freed

    def damage(self, name: str) -> str:
        """What is wrong with a blob; "" when its bytes are those of its name. They are read once in a life.

        One that is damaged goes to the quarantine, so that nothing takes it for what it was. Raises
        StorageFault when that cannot be found out.
        """
        if name in self._sound:
            return ""
        path = self.path(name)
        with storing(path):
            try:
                if _hash_of(path) == name:
                    self._sound.add(name)
                    return ""
                found = "is damaged"
            except FileNotFoundError:
                return f"blob {name[:12]} is missing"
            except OSError as error:
                if error.errno != errno.EIO:  # such as too many open files: that says nothing of the blob
                    raise
                found = "cannot be read"
            move(path, self._quarantine / name)
        return f"blob {name[:12]} {found}; it is in {self._quarantine}"

    def size(self, name: str) -> int:
        """Bytes of a blob; 0 when it is not there."""
        with suppress(OSError):
            return self.path(name).stat().st_size
        return 0

    # -- uploads --------------------------------------------------------------------------------------------

    def uploaded(self, device: DeviceId, blob: BlobRef) -> int:
        """Bytes of an upload that are here; the blob's size when it is whole and checked."""
        if self.arrived(device, blob.sha256).is_file():
            return blob.size
        part = self._part(device, blob)
        # A part of full size was never checked: its last byte is asked for again, and the check with it.
        return min(part.stat().st_size, max(0, blob.size - 1)) if part.is_file() else 0

    def arrived(self, device: DeviceId, sha256: str) -> Path:
        """Where an upload lies once it is whole and checked."""
        return self._partial / device / sha256

    def receive(self, device: DeviceId, blob: BlobRef, start: int, room: int) -> "Upload":
        """Go on with an upload at byte `start`, in the place of whoever was at it.

        room: bytes that the device's uploads may take in all; older ones give way.
        """
        part = self._part(device, blob)
        turn = self._turns[hash(part) % TURNS]
        with turn, storing(part):
            if older := self._receiving.get(part):
                older.close()
            make_folder(part.parent)
            part.touch(mode=0o600)
            if start > part.stat().st_size:
                raise BadPayload(
                    f"an upload goes on at byte {start}, but {part.stat().st_size} bytes are here",
                    "ask how much was uploaded",
                )
            others = _sizes(part.parent)
            others.pop(part, None)
            taken = blob.size + sum(size for _, size in others.values())
            for path, (_, size) in sorted(others.items(), key=lambda each: (each[1][0], each[0])):
                if taken > room:
                    taken -= size
                    path.unlink(missing_ok=True)
            upload = Upload(part, self.arrived(device, blob.sha256), blob, start, turn)
            self._receiving[part] = upload
            return upload

    def accept(self, device: DeviceId, names: Iterable[str]) -> None:
        """Make uploads that are whole and checked into blobs too; `discard` them once their report counts.

        Raises NotFound when one gave way to others.
        """
        for name in dict.fromkeys(names):
            if not self.arrived(device, name).is_file():
                raise NotFound(f"blob {name[:12]} is not here", "upload it first")
            with storing(self.path(name)):
                share(self.arrived(device, name), self.path(name))

    def discard(self, device: DeviceId, names: Iterable[str]) -> None:
        """Delete uploads that are not needed any more. A blob that was made of one stays."""
        for name in names:
            with storing(self._partial):
                self.arrived(device, name).unlink(missing_ok=True)

    def _is_blob(self, upload: Path) -> bool:
        """Whether an upload is a blob as well: one file with two names."""
        with suppress(OSError):
            return upload.samefile(self.path(upload.name))
        return False

    def _part(self, device: DeviceId, blob: BlobRef) -> Path:
        return self._partial / device / f"{blob.sha256}.part"


class References:
    """Which blobs the rows of the database and the open tasks of runs refer to. For the store's thread.

    A blob is deleted only after the last row that refers to it is gone, and written before the first: so a
    crash in between leaves bytes that nothing needs, and never a row whose blob is missing.
    """

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self._db, self._blobs = database, blobs
        self._held: dict[RunId, set[str]] = {}

    def hold(self, run: RunId, name: str) -> None:
        """Keep a blob for the tasks of a run, until `release`."""
        self._held.setdefault(run, set()).add(name)

    def release(self, run: RunId) -> set[str]:
        """Hold nothing for this run any more. Returns what was held."""
        return self._held.pop(run, set())

    def of_run(self, run: RunId) -> set[str]:
        """The blobs that the rows of a run refer to."""
        query = "SELECT sha256 FROM needed_blobs WHERE run = ?"
        return {name for (name,) in self._db.query(query, (run,))}

    def remove_unneeded(self, names: set[str]) -> None:
        """Delete those of the blobs that no row and no task refers to any more."""
        held = set().union(*self._held.values())
        query = "SELECT 1 FROM needed_blobs WHERE sha256 = ? LIMIT 1"
        with suppress(DiskFull):  # on some disks deleting needs space; the next start removes them
            doomed = (name for name in sorted(names - held) if not self._db.query(query, (name,)))
            self._blobs.remove(doomed)


def _sizes(folder: Path) -> dict[Path, tuple[float, int]]:
    """When each file in it was written, and its size; one that another call removes meanwhile is left out."""
    found = {}
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            stat = path.stat()
            found[path] = (stat.st_mtime, stat.st_size)
    return found


def _hash_of(path: Path) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            sha.update(chunk)
    return sha.hexdigest()


class Upload:
    """One upload that is being received. A later one of the same blob closes it: see `Blobs.receive`.

    turn: held while one takes the place of another, and while what came is checked and gets its name, so that
    no byte of another comes in between.
    """

    def __init__(self, part: Path, target: Path, blob: BlobRef, start: int, turn: Lock) -> None:
        self._part, self._target, self._blob, self._turn = part, target, blob, turn
        self._sha = hashlib.sha256()
        self.held = 0
        self._file = part.open("r+b")
        while self.held < start and (chunk := self._file.read(min(CHUNK, start - self.held))):
            self._sha.update(chunk)
            self.held += len(chunk)
        self._file.truncate(start)

    def append(self, chunk: bytes) -> None:
        """Take the next bytes. Raises BadPayload when they are more than was announced."""
        with self._writing():
            if self.held + len(chunk) > self._blob.size:
                self._spoil()
                raise BadPayload(f"an upload is longer than the {self._blob.size} bytes that were announced")
            self._file.write(chunk)
        crash.point("server.chunk-written")
        self._sha.update(chunk)
        self.held += len(chunk)

    def finish(self) -> int:
        """Sync what came, and check it if it is all. Returns how much is here; raises BadPayload."""
        with self._turn, self._writing():
            if self._file.closed:
                raise ValueError
            if self.held < self._blob.size:
                self._sync()
            elif self._sha.hexdigest() == self._blob.sha256:
                settle(self._file, self._target)
                crash.point("server.upload-whole")
            else:
                self._part.unlink(missing_ok=True)
                raise BadPayload(
                    f"the {self.held} uploaded bytes are not those of blob {self._blob.sha256[:12]}",
                    "they were damaged on the way: upload them again from the beginning",
                )
        return self.held

    def _spoil(self) -> None:
        """Throw away what came. Raises ValueError where that is another's by now."""
        with self._turn:
            if self._file.closed:
                raise ValueError
            self._part.unlink(missing_ok=True)

    def _sync(self) -> None:
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError:
            self._part.unlink(missing_ok=True)  # what of it is on the disk, nobody knows any more
            raise

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            with storing(self._part):
                yield
        except ValueError:  # from a file that was closed
            raise Unavailable("another upload of the same blob has begun", "ask how much is here") from None

    def close(self) -> None:
        """No more of this. What came stays, for another attempt."""
        with suppress(OSError):  # it wrote what a full disk had not taken before
            self._file.close()


def mapped(path: Path) -> memoryview:
    """A file's bytes. They stay usable when the file is deleted. Raises NotFound, StorageFault."""
    with storing(path):
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size == 0:  # an empty file cannot be mapped
                    return memoryview(b"")
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except FileNotFoundError:
            raise NotFound(f"blob {path.name[:12]} is not here", "upload it first") from None


class MappedTensors(Lazy):
    """A set of tensors whose file is mapped anew for each that is asked for, and let go with it.

    So a thousand reports can be open, and the memory in use is that of one tensor. The file must stay.
    Raises NotFound or BadPayload when the file is not there or not as long as the manifest says.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        starts, size = layout(manifest)
        if len(mapped(path)) != size:
            raise BadPayload(f"the tensors need {size} bytes, the blob has {len(mapped(path))}")
        super().__init__(manifest)
        self._path = path
        self._places = {spec.name: (spec, start) for spec, start in zip(manifest, starts, strict=True)}

    def __getitem__(self, name: str) -> Array:
        spec, start = self._places[name]
        return unpack((spec,), mapped(self._path)[start : start + spec.nbytes])[name]


class StoredTensors(MappedTensors):
    """Tensors of a blob: where a state keeps them, they are stored already."""

    def __init__(self, path: Path, weights: Weights) -> None:
        super().__init__(path, weights.manifest)
        self.weights = weights
