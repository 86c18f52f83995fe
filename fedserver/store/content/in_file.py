"""Tensors that stay in their files: bytes are read when they are used."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import numpy as np

from shoal.core.errors import BadPayload, NotFound
from shoal.core.exchange.tensors import DTYPES, Lazy, Manifest, layout
from shoal.core.types import Array
from shoal.shell.disk import storing


@contextmanager
def _reading(path: Path) -> Iterator[FileIO]:
    with storing(path):
        try:
            with FileIO(path) as file:
                yield file
        except FileNotFoundError:
            raise _missing(path) from None


def _size_of(path: Path) -> int:
    with storing(path):
        try:
            return path.stat().st_size
        except FileNotFoundError:
            raise _missing(path) from None


def _missing(path: Path) -> NotFound:
    return NotFound(f"the server does not have blob {path.name[:12]}", "upload it first")


class FileTensors(Lazy):
    """A set of tensors in a file, which is open only while a part of one of them is read.

    A thousand reports can be open this way while only one tensor is in memory. The file is read and not
    mapped: many are read side by side, and a page that is mapped brings its neighbors. It must not be
    deleted. Raises NotFound if the file does not exist, BadPayload if its size does not match the manifest.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        starts, size = layout(manifest)
        if (found := _size_of(path)) != size:
            raise BadPayload(f"the tensors need {size} bytes, but the blob has {found}")
        super().__init__(manifest)
        self._path, self._size = path, size
        self._places = {spec.name: (spec, start) for spec, start in zip(manifest, starts, strict=True)}

    def __getitem__(self, name: str) -> Array:
        spec, _ = self._places[name]
        return self.part(name, slice(0, spec.size)).reshape(spec.shape)

    def part(self, name: str, block: slice) -> Array:
        """Raises BadPayload if the disk has lost some of the bytes."""
        spec, place = self._places[name]
        dtype = DTYPES[spec.dtype]
        start, stop = (place + each * dtype.itemsize for each in (block.start, block.stop))
        return self._read(start, stop).view(dtype)

    def _read(self, start: int, stop: int) -> Array:
        """Some bytes of the file. Raises BadPayload."""
        found = np.empty(stop - start, np.uint8)
        with _reading(self._path) as file:
            try:
                file.seek(start)
                whole = file.readinto(found.data) == found.nbytes
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                whole = False
        if not whole:
            raise BadPayload(f"blob {self._path.name[:12]} cannot be read from byte {start} to {stop}")
        found.flags.writeable = False
        return found
