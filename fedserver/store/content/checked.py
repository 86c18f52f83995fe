"""Large models of a run. They stay on the disk, where each is twice, and what is read is what was written.

Each block of a file has a checksum in memory. Where one does not match, the file is restored from its copy,
and read again.
"""

import hashlib
import secrets
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from zlib import crc32

from fedserver.store.content.mapped import MappedTensors
from shoal.core.errors import BadPayload, DataFault, NotFound
from shoal.core.exchange.payload import Weights
from shoal.core.exchange.tensors import BLOCK, DTYPES, Manifest, blocks, layout
from shoal.core.server_kit.aggregation.parallel import LARGEST, Piece
from shoal.core.types import Array
from shoal.shell.disk import TEMPORARY, storing

MIN_BYTES = 1 << 20
"""Bytes of a model from which on its memory is worth the reading."""

Repair = Callable[[], str]
"""Restores the file of a blob if it is damaged, and says what is wrong with it if that was not possible."""


class LostTensors(DataFault):
    """The file of a model is damaged, and so is its copy."""


class Checked(MappedTensors):
    """The tensors in a file. sums: by tensor, the CRC-32 of each `BLOCK` of its elements.

    Raises NotFound, and BadPayload if the file has another size. Anyone who reads a tensor has to expect
    LostTensors, and StorageFault.
    """

    portable = False

    def __init__(self, path: Path, manifest: Manifest, sums: Mapping[str, list[int]], repair: Repair) -> None:
        super().__init__(path, manifest)
        self._sums, self._repair = sums, repair
        self._last: tuple[str, slice, Array] | None = None

    def part(self, name: str, block: slice) -> Array:
        # The updates of all devices may be read against the same part, one after the other.
        if (known := self._last) is not None and known[:2] == (name, block):
            return known[2]
        spec, _ = self._places[name]
        first, last = block.start // BLOCK, -(-block.stop // BLOCK)
        start = first * BLOCK
        whole, expected = slice(start, min(last * BLOCK, spec.size)), self._sums[name][first:last]
        found = self._sound(name, whole, expected)
        if found is None:
            lost = self._repair()
            found = self._sound(name, whole, expected)
            if found is None:
                raise LostTensors(lost or f"tensor {name!r} of blob {self._path.name[:12]} is damaged")
        found = found[block.start - start : block.stop - start]
        found.flags.writeable = False
        if found.size <= LARGEST:
            self._last = name, block, found
        return found

    def __getitem__(self, name: str) -> Array:
        spec, _ = self._places[name]
        return self.part(name, slice(0, spec.size)).reshape(spec.shape)

    def _sound(self, name: str, whole: slice, expected: list[int]) -> Array | None:
        with suppress(BadPayload, NotFound):
            found = super().part(name, whole)
            sums: list[int] = []
            _extend(sums, 0, found)
            return found if sums == expected else None
        return None


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
        tally = _Tally(like)
        with storing(folder), ExitStack() as opened:
            files = [opened.enter_context(open(path, "xb")) for path in self.files]
            for piece, values in found:
                for data in tally.add(piece, values):
                    for file in files:
                        file.write(data)
            rest = tally.rest()
            for file in files:
                file.write(rest)
        self.name, self.size = tally.sha.hexdigest(), tally.size
        super().__init__(self.files[0], like, tally.sums, lambda: "a new model is damaged")

    def settle(self, path: Path, repair: Repair) -> None:
        """Be the tensors in this file, which is a blob."""
        before, self._path, self._repair = self._path, path, repair
        if before != path:  # else it is kept again, after its run has forgotten what it was kept as
            with storing(before):
                before.unlink(missing_ok=True)


def verified(path: Path, weights: Weights, repair: Repair) -> Checked:
    """The tensors of a stored blob. Raises NotFound, DataFault if its bytes do not match its name, BadPayload
    if their number is wrong."""
    source, tally = MappedTensors(path, weights.manifest), _Tally(weights.manifest)
    with suppress(BadPayload):  # a part that cannot be read
        for spec in weights.manifest:
            for block in blocks(spec.size, LARGEST):
                tally.add((spec.name, block.start, block.stop), source.part(spec.name, block))
    tally.rest()
    if tally.sha.hexdigest() != weights.blob.sha256:
        raise DataFault(f"blob {path.name[:12]} is damaged", "check the disk of the state folder")
    return Checked(path, weights.manifest, tally.sums, repair)


class _Tally:
    """What is to know of packed tensors, of which the pieces come in order: the SHA-256 of all bytes, and the
    checksums of blocks."""

    def __init__(self, like: Manifest) -> None:
        starts, self.size = layout(like)
        self._places = {
            spec.name: (start, DTYPES[spec.dtype]) for spec, start in zip(like, starts, strict=True)
        }
        self._end = 0
        self.sha, self.sums = hashlib.sha256(), {spec.name: list[int]() for spec in like}

    def add(self, piece: Piece, values: Array) -> tuple[bytes, memoryview]:
        """The bytes of this piece, and of the gap before it."""
        name, at, _ = piece
        start, dtype = self._places[name]
        gap = self._to(start + at * dtype.itemsize)
        data = values.astype(dtype, copy=False).data.cast("B")
        self.sha.update(data)
        self._end += len(data)
        _extend(self.sums[name], at, values)
        return gap, data

    def rest(self) -> bytes:
        """The bytes after the last piece."""
        return self._to(self.size)

    def _to(self, place: int) -> bytes:
        gap = bytes(place - self._end)
        self.sha.update(gap)
        self._end = place
        return gap


def _extend(sums: list[int], at: int, flat: Array) -> None:
    """Add elements to the checksums of the blocks of a tensor. at: the place of the first one."""
    while flat.size:
        of_block, flat = flat[: BLOCK - at % BLOCK], flat[BLOCK - at % BLOCK :]
        if at % BLOCK:
            sums[-1] = crc32(of_block.data, sums[-1])
        else:
            sums.append(crc32(of_block.data))
        at += of_block.size


def _remove(files: Iterable[Path]) -> None:
    for path in files:
        with suppress(OSError):
            path.unlink(missing_ok=True)
