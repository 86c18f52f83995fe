"""Blobs on the server's disk, named by the SHA-256 of their bytes.

blobs/<aa>/<sha256>               complete, verified and synced; the database refers only to these
copies/<aa>/<sha256>              the newest models of each run again, to restore a damaged one; with a bucket
                                  all blobs are there instead: see `copies`
quarantine/<sha256>               former blobs whose bytes no longer match their names
partial/<device>/<sha256>.part    an upload that is in progress or was interrupted
partial/<device>/<sha256>         a complete and verified upload; it stays until its report counts, so that a
                                  crash before then does not cost the device a second upload
tmp/                              files that are being written
spool                             small blobs that came inside of reports: see `spool`
"""

import hashlib
import math
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import BinaryIO
from weakref import WeakValueDictionary

from fedserver.store.content import checked
from fedserver.store.content.checked import Draft, LostTensors, StoredTensors
from fedserver.store.content.copies import Copies, FolderCopies, duplicate, fault
from fedserver.store.content.frames import Frames
from fedserver.store.content.spool import Spool
from fedserver.store.content.sums import Sums, blocks_of
from fedserver.store.content.upload import Upload
from fedserver.store.database import Database
from shoal.core.errors import BadPayload, DataFault, DiskFull, NotFound
from shoal.core.exchange.parts import MAX_MODELS
from shoal.core.exchange.payload import BlobRef, Weights
from shoal.core.exchange.tensors import Manifest, layout, manifest_of, pack, unpack
from shoal.core.server_kit.aggregation.parallel import Piece, in_memory
from shoal.core.types import Array, Bytes, DeviceId, RunId, Tensors
from shoal.shell import crash
from shoal.shell.disk import make_folder, move, settle, share, storing, sync, temporary

MAX_UPLOADS = MAX_MODELS + 2
"""Uploads of one device that are kept: the models that an answer can have, a graph and an encoder. Empty ones
take no bytes of its room, and a file each."""
LOCKS = 64
"""How many locks all uploads share. The hash of the file's path selects one, so no lock has to be created or
removed for an upload, and uploads of different blobs rarely wait for each other."""


class Blobs:
    """The blobs of a state folder. `References` knows which of them are needed.

    copies: where they are a second time; in the same folder if not given. restored: what was found damaged
    and restored since the start, for people. frames: those of the blobs that are fetched.
    """

    def __init__(self, state: Path, copies: Copies | None = None) -> None:
        self.folder = state
        self._blobs, self._partial, self._tmp = state / "blobs", state / "partial", state / "tmp"
        self._quarantine = state / "quarantine"
        self.copies = copies or FolderCopies(state / "copies", self._tmp)
        self.restored: list[str] = []
        self.frames = Frames()
        self._sound: dict[str, float] = {}
        self._blocks: dict[str, bytes] = {}  # of what has arrived since the start, or was verified
        self._receiving = WeakValueDictionary[Path, Upload]()
        self._turns = tuple(Lock() for _ in range(LOCKS))
        with storing(state):
            for folder in (self._blobs, self._partial, self._tmp):
                make_folder(folder)
        self._spool = Spool(state / "spool")
        self._senders = {folder.name for folder in self._partial.iterdir()}
        self._complete()

    def path(self, sha256: str) -> Path:
        return self._blobs / sha256[:2] / sha256

    def here(self, sha256: str) -> Path:
        """The path of a blob, which is fetched first if it is only in a bucket. Raises StorageFault."""
        path = self.path(sha256)
        if self.copies.are_complete and not path.exists():
            self.copies.restore(path)
        return path

    def open(self, sha256: str) -> BinaryIO:
        """A blob to be read. Raises FileNotFoundError, and StorageFault."""
        return self.here(sha256).open("rb")

    def make(self, like: Manifest, found: Iterable[tuple[Piece, Array]]) -> Tensors:
        """A new model of its pieces (`parallel.Maker`), for any thread. A large one is a draft on disk until
        it is kept. Raises StorageFault."""
        if layout(like)[1] < checked.MIN_BYTES:
            return in_memory(like, found)
        return Draft(self._tmp, 1 if self.copies.are_complete else 2, like, found)

    def keep(self, tensors: Tensors) -> Weights:
        """Store tensors and hash them while writing; they are on disk on return. Raises StorageFault."""
        if isinstance(tensors, Draft):
            return self._keep_draft(tensors)
        return self._write(tensors)

    def _keep_draft(self, draft: Draft) -> Weights:
        files, draft.files = draft.files, ()
        if not files:  # some bytes may never reach the disk if syncing them has failed once
            weights = self._write(draft)
        else:
            path = self.path(draft.name)
            with storing(path):
                sync(files[0])
                share(files[0], path)
            for file in files[1:]:
                self.copies.take(file, draft.name)
            self.copies.add(path)
            weights = Weights(draft.manifest, BlobRef(draft.name, draft.size))
        name = weights.blob.sha256
        draft.settle(self.path(name), partial(self.damage, name))
        return weights

    def _write(self, tensors: Tensors) -> Weights:
        sha, size = hashlib.sha256(), 0
        with storing(self._tmp), temporary(self._tmp) as file:
            for piece in pack(tensors):
                sha.update(piece)
                size += file.write(piece)
            settle(file, self.path(sha.hexdigest()))  # also if there is one, which may have rotted
        self.copies.add(self.path(sha.hexdigest()))
        return Weights(manifest_of(tensors), BlobRef(sha.hexdigest(), size))

    def put(self, blobs: Mapping[str, Bytes]) -> None:
        """Store small blobs by their SHA-256: no power cut undoes it, and one sync serves all of them.

        Raises StorageFault; after DiskFull, remove those that are not needed.
        """
        new = {name: data for name, data in blobs.items() if not self._is_here(name, data)}
        if new:
            if self._spool.is_full:
                for name in self._spool.held:
                    self.make_durable(name)
                self._spool.clear()
            self._spool.add(new)
            crash.point("server.spooled")
        for name, data in new.items():
            self._place(name, data)
            self._blocks[name] = blocks_of(data)

    def _is_here(self, name: str, data: Bytes) -> bool:
        """Whether there is a file with these bytes: one that has rotted is written again."""
        with storing(self.path(name)):
            return self.path(name).is_file() and self.path(name).read_bytes() == data

    def _place(self, name: str, data: Bytes) -> None:
        """Make a file of bytes that are in the spool. It is not synced."""
        written = self._tmp / name
        with storing(written):
            try:
                written.write_bytes(data)
                self.path(name).parent.mkdir(mode=0o700, exist_ok=True)
                written.rename(self.path(name))
            except OSError:
                written.unlink(missing_ok=True)
                raise

    def make_durable(self, name: str) -> None:
        """Sync a blob that may have come in a report, before a row that outlives the report refers to it."""
        with storing(self.path(name)), suppress(FileNotFoundError):
            sync(self.path(name))

    def _complete(self) -> None:
        """After a start: what a power cut left incomplete of the blobs in the spool is made again."""
        for name, data in self._spool.entries():
            path = self.path(name)
            with storing(path):
                if path.is_file() and path.read_bytes() == data:
                    self.make_durable(name)
                    continue
                with temporary(self._tmp) as file:
                    file.write(data)
                    settle(file, path)
        self._spool.clear()

    def read(self, weights: Weights) -> Tensors:
        """Stored tensors in memory, where the disk cannot change them any more.

        Raises NotFound, DataFault if the bytes do not match their name, BadPayload if the size is wrong.
        """
        path = self.here(weights.blob.sha256)
        with storing(path):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                raise NotFound(f"the server does not have blob {path.name[:12]}", "upload it first") from None
        if hashlib.sha256(data).hexdigest() != path.name:
            raise DataFault(f"blob {path.name[:12]} is damaged", "check the disk of the state folder")
        return unpack(weights.manifest, memoryview(data))

    def safe(self, weights: Weights) -> Tensors:
        """Stored tensors that the disk cannot change any more: `read`, but large ones stay there, `checked`.

        Raises as `read` does, and StorageFault.
        """
        name = weights.blob.sha256
        if weights.blob.size < checked.MIN_BYTES or not self.copies.ensure(path := self.here(name)):
            return self.read(weights)
        return checked.verified(path, weights, partial(self.damage, name))

    def reported(self, weights: Weights, together: int) -> StoredTensors:
        """Tensors that a report brought, of which no damaged part is ever read. They stay on the disk, or are
        in memory once one is needed: small ones, if not too many are.

        together: bytes of all that are used at the same time. Raises NotFound, BadPayload if the size is
        wrong, LostTensors if they are damaged, StorageFault.
        """
        name = weights.blob.sha256
        while name not in self._blocks:  # it came before the start
            if lost := self.damage(name):
                raise LostTensors(lost)
        repair = partial(self.damage, name)
        is_small = weights.blob.size < checked.MIN_BYTES and together <= checked.MAX_BYTES
        opened = partial(StoredTensors, self.path(name), weights, self._blocks[name], repair, is_small)
        try:
            return opened()
        except (NotFound, BadPayload):  # it is gone, or was cut
            if lost := repair():
                raise LostTensors(lost) from None
            return opened()

    def remove(self, names: Iterable[str]) -> None:
        """Delete blobs that are no longer needed."""
        for name in (doomed := list(names)):
            self._sound.pop(name, None)
            self._blocks.pop(name, None)
            self.frames.forget(name)
            with storing(self.path(name)):
                self.path(name).unlink(missing_ok=True)
            self._spool.forget(name)
        self.copies.remove(doomed)

    def clean_up(self, needed: Collection[str], devices: Collection[DeviceId]) -> tuple[int, int]:
        """Delete the files that a crash left. Returns how many there were, and how many bytes that freed.

        These are temporary files, blobs that are not in `needed`, uploads of devices that are not in
        `devices`, and uploads of reports that already count.
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
        self.copies.clean_up()
        return len(doomed), freed

    def damage(self, name: str, within: float = 0.0) -> str:
        """What is wrong with a blob; "" if its bytes match its name.

        within: a blob that was sound less than this many seconds ago is not read again. A damaged blob is
        moved to the quarantine, so that it cannot be used under its name, and is restored from its copy if
        there is a sound one; then it is sound again, and `restored` says so. Raises StorageFault if the disk
        did not let the blob be checked.
        """
        if within and time.monotonic() - self._sound.get(name, -math.inf) < within:
            return ""
        self.frames.forget(name)  # they may be of damaged bytes, and the file is about to be sound
        found = fault(self.path(name), sums := Sums())
        if not found:
            self._sound[name], self._blocks[name] = time.monotonic(), sums.blocks()
            return ""
        self._sound.pop(name, None)
        found = f"blob {name[:12]} {found}"
        with storing(self.path(name)):
            there = self.path(name).exists()
            if there:
                move(self.path(name), self._quarantine / name)
                found += f" and was moved to {self._quarantine}"
            if not self.copies.restore(self.path(name)):
                return found
        if there or not self.copies.are_complete:
            self.restored.append(f"{found}; it was restored from its copy")
        return ""

    def keep_copies(self, wanted: Collection[str]) -> None:
        """Keep a second copy of these blobs. A copy that is damaged is made again."""
        self.copies.keep(wanted, self.path)

    def copy(self, source: Path) -> None:
        """Store a blob that is in another folder, unless it is here. Raises StorageFault."""
        path = self.path(source.name)
        with storing(path):
            if fault(path):
                duplicate(source, path, self._tmp)
        self.copies.add(path)

    def size(self, name: str) -> int:
        """Bytes of a blob; 0 if it does not exist."""
        with suppress(OSError):
            return self.path(name).stat().st_size
        return 0

    # -- uploads --------------------------------------------------------------------------------------------

    def uploaded(self, device: DeviceId, blob: BlobRef) -> int:
        """How many bytes of an upload have arrived; the blob's size once it is complete and verified."""
        whole = self.arrived(device, blob.sha256)
        if whole.is_file():
            return blob.size
        with suppress(FileNotFoundError):
            # A part of full size was never verified: asking for its last byte again makes that happen.
            return min(self._part(device, blob).stat().st_size, max(0, blob.size - 1))
        return blob.size if whole.is_file() else 0  # an earlier call may have come to its end just now

    def arrived(self, device: DeviceId, sha256: str) -> Path:
        """The path of an upload once it is complete and verified."""
        return self._partial / device / sha256

    def receive(self, device: DeviceId, blob: BlobRef, start: int, room: int) -> Upload:
        """Continue an upload at byte `start`; a call that was receiving the same upload is cut off.

        room: how many bytes all uploads of the device may use; the oldest ones are deleted beyond that, and
        beyond `MAX_UPLOADS`.
        Raises BadPayload if `start` is beyond the bytes that have arrived.
        """
        part = self._part(device, blob)
        self._senders.add(device)
        turn = self._turns[hash(part) % LOCKS]
        with turn, storing(part):
            if older := self._receiving.get(part):
                older.close()
            make_folder(part.parent)
            part.touch(mode=0o600)
            if start > part.stat().st_size:
                raise BadPayload(
                    f"an upload continues at byte {start}, but only {part.stat().st_size} bytes have arrived",
                    "ask how much was uploaded",
                )
            others = _sizes(part.parent)
            others.pop(part, None)
            taken, count = blob.size + sum(size for _, size in others.values()), 1 + len(others)
            for path, (_, size) in sorted(others.items(), key=lambda each: (each[1][0], each[0])):
                if taken > room or count > MAX_UPLOADS:
                    taken, count = taken - size, count - 1
                    path.unlink(missing_ok=True)
                    self._forget(path.name)
            target = self.arrived(device, blob.sha256)
            upload = Upload(part, target, blob, start, turn, self._blocks)
            self._receiving[part] = upload
            return upload

    def accept(self, device: DeviceId, names: Iterable[str]) -> None:
        """Turn complete uploads into blobs; call `discard` for the uploads once their report counts.

        Raises NotFound if an upload does not exist, for example because newer uploads took its space.
        """
        for name in dict.fromkeys(names):
            if not self.arrived(device, name).is_file():
                raise NotFound(f"the server does not have blob {name[:12]}", "upload it first")
            # The blob becomes a second name of the same file, instead of a renamed upload. If the process
            # dies before the report's row is committed, the start removes the blob, which no row refers to,
            # and the upload is still there when the device sends its report again. A blob that is there
            # already is replaced: it may have rotted, and the upload has just been compared with its name.
            with storing(self.path(name)):
                share(self.arrived(device, name), self.path(name))
            self.copies.add(self.path(name))

    def send(self, device: DeviceId, names: Iterable[str]) -> None:
        """Make the copies of complete uploads that are about to be accepted, as far as these need them.

        It takes as long as the bucket does, and saves `accept` that time, which holds up everything else.
        """
        if self.copies.are_complete:
            for name in dict.fromkeys(names):
                if self.arrived(device, name).is_file():
                    self.copies.add(self.arrived(device, name))

    def discard(self, device: DeviceId, names: Iterable[str]) -> None:
        """Delete uploads that are no longer needed. A blob that was made from one stays."""
        if device not in self._senders:  # all that it sent came inside of its reports
            return
        for name in names:
            with storing(self._partial):
                self.arrived(device, name).unlink(missing_ok=True)
            self._forget(name)

    def discard_all(self, device: DeviceId) -> None:
        """Delete the uploads of a device that no report has brought, also those that are not complete."""
        with storing(self._partial):
            for path in (self._partial / device).glob("*"):
                path.unlink(missing_ok=True)
                self._forget(path.name)

    def discard_old(self, since: float, devices: Collection[DeviceId]) -> None:
        """Delete the uploads that no one has continued since then, by the clock, but for those of these
        devices, which may still report."""
        with storing(self._partial):
            for folder in self._partial.iterdir():
                for path, (written, _) in _sizes(folder).items():
                    if written < since and folder.name not in devices:
                        path.unlink(missing_ok=True)
                        self._forget(path.name)

    def _forget(self, name: str) -> None:
        """An upload is gone. The checksums of one that has become a blob stay."""
        if not self.path(name).exists():
            self._blocks.pop(name, None)

    def _is_blob(self, upload: Path) -> bool:
        """Whether an upload is also a blob: one file with two names."""
        with suppress(OSError):
            return upload.samefile(self.path(upload.name))
        return False

    def _part(self, device: DeviceId, blob: BlobRef) -> Path:
        return self._partial / device / f"{blob.sha256}.part"


class References:
    """Which blobs the rows of the database and the open tasks of runs refer to. For the store's thread only.

    A blob is written before the first row that refers to it, and deleted after the last one. A crash in
    between leaves a blob that is not needed, but never a row whose blob is missing.
    """

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self._db, self._blobs = database, blobs
        self._held: dict[RunId, set[str]] = {}

    def hold(self, run: RunId, name: str) -> None:
        """Keep a blob for the tasks of a run, until `release`."""
        self._held.setdefault(run, set()).add(name)

    def release(self, run: RunId) -> set[str]:
        """Stop holding blobs for this run. Returns the names of those that were held."""
        return self._held.pop(run, set())

    def of_run(self, run: RunId) -> set[str]:
        """The blobs that the rows of a run refer to."""
        query = "SELECT sha256 FROM needed_blobs WHERE run = ?"
        return {name for (name,) in self._db.query(query, (run,))}

    def remove_unneeded(self, names: set[str]) -> None:
        """Delete those of the given blobs that no row and no task refers to."""
        held = set().union(*self._held.values())
        query = "SELECT 1 FROM needed_blobs WHERE sha256 = ? LIMIT 1"
        with suppress(DiskFull):  # deleting needs space on some file systems; the next start removes them
            doomed = (name for name in sorted(names - held) if not self._db.query(query, (name,)))
            self._blobs.remove(doomed)


def _sizes(folder: Path) -> dict[Path, tuple[float, int]]:
    """When each file in the folder was written, and its size, without files that another call removes."""
    found = {}
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            stat = path.stat()
            found[path] = (stat.st_mtime, stat.st_size)
    return found
