"""Tensors as views of files: bytes are read when they are used."""

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import numpy as np

from shoal.core.errors import BadPayload, NotFound
from shoal.core.exchange.payload import Weights
from shoal.core.exchange.tensors import DTYPES, Lazy, Manifest, layout, unpack
from shoal.core.types import Array
from shoal.shell.disk import storing


def mapped(path: Path) -> memoryview:
    """A file's bytes, which stay usable after the file is deleted. Raises NotFound, StorageFault."""
    with _reading(path) as file:
        if os.fstat(file.fileno()).st_size == 0:  # an empty file cannot be mapped
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


@contextmanager
def _reading(path: Path) -> Iterator[FileIO]:
    with storing(path):
        try:
            with FileIO(path) as file:
                yield file
        except FileNotFoundError:
            raise NotFound(f"the server does not have blob {path.name[:12]}", "upload it first") from None


class MappedTensors(Lazy):
    """A set of tensors whose file is mapped only while one of them is used, for each of them separately.

    A thousand reports can be open this way while only one tensor is in memory. The file must not be deleted.
    Raises NotFound if the file does not exist, BadPayload if its size does not match the manifest.
    """

    portable = True

    def __init__(self, path: Path, manifest: Manifest) -> None:
        starts, size = layout(manifest)
        if len(mapped(path)) != size:
            raise BadPayload(f"the tensors need {size} bytes, but the blob has {len(mapped(path))}")
        super().__init__(manifest)
        self._path = path
        self._places = {spec.name: (spec, start) for spec, start in zip(manifest, starts, strict=True)}

    def __getitem__(self, name: str) -> Array:
        spec, start = self._places[name]
        return unpack((spec,), mapped(self._path)[start : start + spec.nbytes])[name]

    def part(self, name: str, block: slice) -> Array:
        """Read, not mapped: many files are read side by side, and a page that is mapped brings its neighbors.
        Raises BadPayload if the disk has lost some of the bytes."""
        spec, start = self._places[name]
        found = np.empty(block.stop - block.start, DTYPES[spec.dtype])
        with _reading(self._path) as file:
            try:
                file.seek(start + block.start * found.itemsize)
                whole = file.readinto(found.data) == found.nbytes
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                whole = False
        if not whole:
            raise BadPayload(f"tensor {name!r} of blob {self._path.name[:12]} cannot be read")
        return found


class StoredTensors(MappedTensors):
    """Tensors of a stored blob. A state that contains them can be saved without writing them again."""

    def __init__(self, path: Path, weights: Weights) -> None:
        super().__init__(path, weights.manifest)
        self.weights = weights
