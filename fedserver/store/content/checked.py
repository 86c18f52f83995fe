"""Models that stay on the disk, where what is read is what was written: large ones of a run, and reports.

Each block of a file has a checksum in memory. Where one does not match, the file is restored from its copy if
it has one, and read again.
"""

import secrets
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from fedserver.store.content.in_file import FileTensors
from fedserver.store.content.sums import BLOCK, Sums, are_sound
from shoal.core.errors import BadPayload, DataFault, NotFound
from shoal.core.exchange.payload import Weights
from shoal.core.exchange.tensors import DTYPES, Manifest, layout
from shoal.core.server_kit.aggregation.parallel import LARGEST, Piece
from shoal.core.types import Array, Bytes
from shoal.shell.disk import TEMPORARY, storing, write_early

MIN_BYTES = 1 << 20
"""Bytes of a model from which on its memory is worth the reading."""
MAX_BYTES = 64 << 20
"""Bytes of smaller ones that are in memory together. Beyond that, each is read for each part of a tensor."""

Repair = Callable[[], str]
"""Restores the file of a blob if it is damaged, and says what is wrong with it if that was not possible."""


class LostTensors(DataFault):
    """The file of a model is damaged, and so is its copy."""


class Checked(FileTensors):
    """The tensors in a file. blocks: the checksums of its blocks, see `Sums.blocks`.

    Raises NotFound, and BadPayload if the file has another size. Anyone who reads a tensor has to expect
    LostTensors, and StorageFault.
    """

    _remembers = True

    def __init__(self, path: Path, manifest: Manifest, blocks: bytes, repair: Repair) -> None:
        super().__init__(path, manifest)
        self._blocks, self._repair = blocks, repair
        self._last: tuple[str, slice, Array] | None = None

    def part(self, name: str, block: slice) -> Array:
        # The updates of all devices may be read against the same part, one after the other.
        if (known := self._last) is not None and known[:2] == (name, block):
            return known[2]
        spec, place = self._places[name]
        dtype = DTYPES[spec.dtype]
        start, stop = place + block.start * dtype.itemsize, place + block.stop * dtype.itemsize
        first = start // BLOCK
        whole = first * BLOCK, min(-(-stop // BLOCK) * BLOCK, self._size)
        data = self._sound(first, *whole)
        if data is None:
            lost = self._repair()
            data = self._sound(first, *whole)
            if data is None:
                raise LostTensors(lost or f"tensor {name!r} of blob {self._path.name[:12]} is damaged")
        found = data[start - whole[0] : stop - whole[0]].view(dtype)
        if self._remembers and found.size <= LARGEST:
            self._last = name, block, found
        return found

    def _sound(self, first: int, start: int, stop: int) -> Array | None:
        with suppress(BadPayload, NotFound):
            found = self._read(start, stop)
            return found if are_sound(found.data, self._blocks, first) else None
        return None


class StoredTensors(Checked):
    """Tensors that a report brought. A state that contains them can be saved without writing them again."""

    _remembers = False  # there may be thousands of them

    def __init__(
        self, path: Path, weights: Weights, blocks: bytes, repair: Repair, in_memory: bool = False
    ) -> None:
        """in_memory: whether they stay there, all of them, once one is needed."""
        super().__init__(path, weights.manifest, blocks, repair)
        self.weights, self._in_memory = weights, in_memory
        self._kept: Array | None = None

    def _sound(self, first: int, start: int, stop: int) -> Array | None:
        if not self._in_memory:
            return super()._sound(first, start, stop)
        if self._kept is None:
            self._kept = super()._sound(0, 0, self._size)
        return None if self._kept is None else self._kept[start:stop]


class Draft(Checked):
    """A model that was written as it was made, into files that are deleted with this object.

    like, found: see `parallel.Maker`. copies: how many files there are. name, size: of its bytes. files:
    those that `Blobs.keep` may turn into a blob and its copy. Raises StorageFault.
    """

    def __init__(
        self, folder: Path, copies: int, like: Manifest, found: Iterable[tuple[Piece, Array]]
    ) -> None:
        self.files = tuple(folder / f"{TEMPORARY}{secrets.token_hex(8)}" for _ in range(copies))
        weakref.finalize(self, _remove, self.files)
        sums = Sums()
        with storing(folder), ExitStack() as opened:
            files = [opened.enter_context(open(path, "xb")) for path in self.files]
            for data in _packed(like, found):
                for file in files:
                    write_early(file, data, sums.size)
                sums.add(data)
        self.name, self.size = sums.sha256, sums.size
        super().__init__(self.files[0], like, sums.blocks(), lambda: "a new model is damaged")

    def settle(self, path: Path, repair: Repair) -> None:
        """Be the tensors in this file, which is a blob."""
        before, self._path, self._repair = self._path, path, repair
        if before != path:  # else it is kept again, after its run has forgotten what it was kept as
            with storing(before):
                before.unlink(missing_ok=True)


def verified(path: Path, weights: Weights, repair: Repair) -> Checked:
    """The tensors of a stored blob. Raises NotFound, DataFault if its bytes do not match its name, BadPayload
    if their number is wrong."""
    FileTensors(path, weights.manifest)
    sums = Sums()
    with storing(path):
        sums.add_file(path)
    if sums.sha256 != weights.blob.sha256:
        raise DataFault(f"blob {path.name[:12]} is damaged", "check the disk of the state folder")
    return Checked(path, weights.manifest, sums.blocks(), repair)


def _packed(like: Manifest, found: Iterable[tuple[Piece, Array]]) -> Iterator[Bytes]:
    """The bytes of tensors whose pieces come in order, and of the gaps between them."""
    starts, size = layout(like)
    places = {spec.name: (start, DTYPES[spec.dtype]) for spec, start in zip(like, starts, strict=True)}
    end = 0
    for (name, at, _), values in found:
        start, dtype = places[name]
        data = values.astype(dtype, copy=False).data.cast("B")
        place = start + at * dtype.itemsize
        if place > end:
            yield bytes(place - end)
        yield data
        end = place + len(data)
    yield bytes(size - end)


def _remove(files: Iterable[Path]) -> None:
    for path in files:
        with suppress(OSError):
            path.unlink(missing_ok=True)
