"""What a device remembers of a run from one task to the next: tensors that never leave the device.

<state>/memory/<run>        what is remembered: a record, its name the SHA-256 of the run's
<state>/memory/next         what the current task wants remembered, once its result is in the outbox
<state>/memory/tensors/...  the tensors of both, by their hash

    work is done --> tensors and `next` on the disk --> result in the outbox --> record --> old tensors go

The result in the outbox decides: the record does not change before the result is there, and the result cannot
leave before the record is written. Otherwise a task that is repeated after a crash would start from its own
outcome and train twice. A record also keeps what its task started from, for a task that has to be repeated,
for example because its result was damaged. What cannot be read any more is forgotten.
"""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from fedclient.store.blobs import BlobStore
from shoal.core.errors import BadPayload, StorageFault, TooManyFiles
from shoal.core.exchange.payload import Part, Payload, Weights
from shoal.core.exchange.wire import payload_from_bytes, payload_to_bytes
from shoal.core.types import RunId, Tensors
from shoal.shell import crash
from shoal.shell.disk import make_folder, storing, sync_folder, write

NEXT, TENSORS = "next", "tensors"
RUNS = 16
"""The number of runs that are remembered; the least recently used one is forgotten first."""


@dataclass(frozen=True)
class Record:
    """work: key (`shoal.core.exchange.wire.work_key`) of the task that left `after` and had started from
    `before`."""

    run: RunId
    work: str
    before: Weights | None
    after: Weights | None

    def to_bytes(self) -> bytes:
        found: dict[str, Part | None] = dict(vars(self))
        return payload_to_bytes(
            Payload("memory", {name: part for name, part in found.items() if part is not None})
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> "Record":
        """Raises BadPayload."""
        parts = payload_from_bytes(data).parts
        run, work, before, after = (parts.get(name) for name in ("run", "work", "before", "after"))
        if not isinstance(run, str) or not isinstance(work, str):
            raise BadPayload("a memory record must name its run and its work")
        if not isinstance(before, Weights | None) or not isinstance(after, Weights | None):
            raise BadPayload("a memory record must contain tensors")
        return cls(run, work, before, after)


class Memory:
    """The memory in `folder`. Agent and training process have an object each, and take turns."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store: BlobStore | None = None

    @classmethod
    def beside(cls, folder: Path) -> "Memory":
        """The memory of the device whose outbox or blobs are in `folder`."""
        return cls(folder.parent / "memory")

    def before(self, run: RunId, work: str) -> Tensors | None:
        """What the task with this key starts from, as views of mapped files; None at first."""
        record = _read(self._path(run))
        if record is None:
            return None
        weights = record.before if record.work == work else record.after
        sound = weights is not None and self._tensors.has(weights.blob)
        return self._tensors.load(weights) if weights is not None and sound else None

    def propose(self, run: RunId, work: str, tensors: Tensors) -> None:
        """Have these remembered once the result of this work is in the outbox. Raises StorageFault."""
        write(self._folder / NEXT, Record(run, work, None, self._tensors.keep(tensors)).to_bytes())
        crash.point("device.memory-proposed")

    def settle(self, work: str) -> None:
        """The result of this work is in the outbox: remember what it left. Safe to repeat."""
        proposed = _read(self._folder / NEXT)
        if proposed is None or proposed.work != work:
            return
        own = self._path(proposed.run)
        last = _read(own)
        before = None if last is None else last.before if last.work == work else last.after
        write(own, Record(proposed.run, work, before, proposed.after).to_bytes())
        crash.point("device.memory-settled")
        others = (path for path in self._paths() if path != own)  # from when the clock was ahead, maybe
        for old in sorted(others, key=lambda path: path.stat().st_mtime)[: 1 - RUNS]:
            self._remove(old)
        self._remove(self._folder / NEXT)
        self._tidy()

    def forget(self, but: Collection[RunId]) -> None:
        """Forget all runs but these. Raises StorageFault."""
        gone = [path for path in self._paths() if (found := _read(path)) is None or found.run not in but]
        if gone:
            for path in gone:
                self._remove(path)
            self._tidy()

    @property
    def _tensors(self) -> BlobStore:
        if self._store is None:  # a device that remembers nothing gets no folder
            make_folder(self._folder)
            self._store = BlobStore(self._folder / TENSORS)
        return self._store

    def _path(self, run: RunId) -> Path:
        return self._folder / hashlib.sha256(run.encode()).hexdigest()

    def _paths(self) -> list[Path]:
        with storing(self._folder):
            return list(self._folder.glob("[0-9a-f]" * 64))

    def _remove(self, path: Path) -> None:
        with storing(path):
            path.unlink(missing_ok=True)
            sync_folder(self._folder)

    def _tidy(self) -> None:
        """Delete the tensors that no record refers to."""
        records = filter(None, map(_read, (*self._paths(), self._folder / NEXT)))
        needed = {each.blob.sha256 for found in records for each in (found.before, found.after) if each}
        self._tensors.trim(0, needed)


def _read(path: Path) -> Record | None:
    """None for what is not there or damaged. Raises TooManyFiles, which says nothing of the file."""
    try:
        with storing(path):
            return Record.from_bytes(path.read_bytes())
    except TooManyFiles:
        raise
    except (StorageFault, BadPayload):
        return None
