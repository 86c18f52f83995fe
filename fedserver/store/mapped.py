"""Tensors in files, as views of mapped memory: what is not looked at is never read."""

import mmap
import os
from pathlib import Path

from shoal.core.errors import BadPayload, NotFound
from shoal.core.exchange.payload import Weights
from shoal.core.exchange.tensors import Lazy, Manifest, layout, unpack
from shoal.core.types import Array
from shoal.shell.disk import storing


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
