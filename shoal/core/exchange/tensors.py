"""Named arrays: their manifest, their only byte layout, and sums that have the same bits every time.

Layout of packed tensors: each array's little-endian bytes in manifest order, every start rounded up to
`ALIGNMENT` bytes with zeros, so that a mapped file can be used in place. The SHA-256 of these bytes is the
identity of a set of tensors everywhere in the system.
"""

import hashlib
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from shoal.core.data.scale import RESERVED
from shoal.core.errors import BadPayload
from shoal.core.types import Array, Tensors

ALIGNMENT = 64
DTYPES: Mapping[str, np.dtype[np.generic]] = {
    name: np.dtype(name).newbyteorder("<")
    for name in ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")
}
MAX_TENSORS, MAX_RANK, MAX_NAME = 4096, 8, 256
ORDER = "shoal_order"
"""The metadata entry of a safetensors file with the order of the tensors: such a file sorts them by name."""
BLOCK = 1 << 15
"""Elements per step of a sum: what a step makes stays in the processor's cache until the next one."""


@dataclass(frozen=True)
class TensorSpec:
    """Name, dtype (a key of `DTYPES`) and shape of one tensor. An illegal one cannot be created."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > MAX_NAME:
            raise BadPayload(f"a tensor's name must have 1 to {MAX_NAME} characters, not {len(self.name)}")
        if self.dtype not in DTYPES:
            raise BadPayload(
                f"tensor {self.name}: dtype {self.dtype!r} is not known", f"use one of {', '.join(DTYPES)}"
            )
        if len(self.shape) > MAX_RANK or any(size < 0 or size >= 1 << 40 for size in self.shape):
            raise BadPayload(f"tensor {self.name}: shape {self.shape} is not possible")

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * DTYPES[self.dtype].itemsize

    @property
    def is_float(self) -> bool:
        return DTYPES[self.dtype].kind == "f"


Manifest = tuple[TensorSpec, ...]


class Lazy(Mapping[str, Array]):
    """Tensors that are read or made again each time they are asked for: none stays in memory.

    manifest: what they will be; known without making any.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest

    @abstractmethod
    def __getitem__(self, name: str) -> Array: ...

    def part(self, name: str, block: slice) -> Array:
        """Some elements of a tensor, in memory order. Only they stay in memory."""
        return self[name].reshape(-1)[block].copy()

    def __iter__(self) -> Iterator[str]:
        return (spec.name for spec in self.manifest)

    def __len__(self) -> int:
        return len(self.manifest)


def part_of(tensors: Tensors, name: str, block: slice) -> Array:
    """Some elements of a tensor, in memory order."""
    return tensors.part(name, block) if isinstance(tensors, Lazy) else tensors[name].reshape(-1)[block]


def manifest_of(tensors: Tensors) -> Manifest:
    """The manifest of `tensors`, in their own order."""
    if isinstance(tensors, Lazy):
        return tensors.manifest
    return tuple(_spec_of(name, array.dtype, array.shape) for name, array in tensors.items())


@lru_cache(4 * MAX_TENSORS)
def _spec_of(name: str, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> TensorSpec:
    return TensorSpec(name, dtype.name, shape)


def layout(manifest: Manifest) -> tuple[list[int], int]:
    """Where each tensor starts in the packed bytes, and how many bytes there are in all."""
    if len(manifest) > MAX_TENSORS:
        raise BadPayload(f"{len(manifest)} tensors in one set", f"at most {MAX_TENSORS} are taken")
    if len({spec.name for spec in manifest}) != len(manifest):
        raise BadPayload("two tensors of one set have the same name")
    starts, end = [], 0
    for spec in manifest:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        starts.append(start)
        end = start + spec.nbytes
    return starts, end


def pack(tensors: Tensors) -> Iterator[memoryview]:
    """The packed bytes, piece by piece, without a copy of any array that is already contiguous."""
    end = 0
    for name, array in tensors.items():
        if padding := -end % ALIGNMENT:
            yield memoryview(bytes(padding))
            end += padding
        data = np.ascontiguousarray(
            array, dtype=DTYPES[TensorSpec(name, array.dtype.name, array.shape).dtype]
        )
        yield data.reshape(-1).view(np.uint8).data
        end += data.nbytes


def unpack(manifest: Manifest, data: memoryview) -> dict[str, Array]:
    """Read-only views of `data` (a mapped file, say), one for each tensor; nothing is copied."""
    starts, size = layout(manifest)
    if len(data) != size:
        raise BadPayload(f"the tensors need {size} bytes, the data have {len(data)}")
    views: dict[str, Array] = {}
    for spec, start in zip(manifest, starts, strict=True):
        flat = np.frombuffer(data, dtype=DTYPES[spec.dtype], count=spec.size, offset=start)
        view = flat.reshape(spec.shape)
        view.flags.writeable = False
        views[spec.name] = view
    return views


def digest(tensors: Tensors) -> str:
    """SHA-256 of the packed bytes, as 64 hex digits."""
    sha = hashlib.sha256()
    for piece in pack(tensors):
        sha.update(piece)
    return sha.hexdigest()


def nbytes(tensors: Tensors) -> int:
    """Length of the packed bytes."""
    return layout(manifest_of(tensors))[1]


def check_manifest(found: Manifest, expected: Manifest, what: str = "the model") -> None:
    """Refuse tensors that are not the expected ones, naming the first that differs. Costs no allocation."""
    names, wanted = [spec.name for spec in found], [spec.name for spec in expected]
    if missing := sorted(set(wanted) - set(names)):
        raise BadPayload(f"{what} lacks tensor {missing[0]!r}", "train the run's own model: same build()")
    if extra := sorted(set(names) - set(wanted)):
        raise BadPayload(
            f"{what} has an unknown tensor {extra[0]!r}", "train the run's own model: same build()"
        )
    if names != wanted:
        raise BadPayload(
            f"{what} has its tensors in another order", f"keep the order of the model: {wanted[0]}, ..."
        )
    for got, want in zip(found, expected, strict=True):
        if got != want:
            raise BadPayload(
                f"{what}, tensor {got.name!r}: {got.dtype} {list(got.shape)}, expected {want.dtype} "
                f"{list(want.shape)}",
                "train the run's own model: same build()",
            )


def own_of(manifest: Manifest) -> Manifest:
    """The tensors of the learner itself, without a scale of the inputs."""
    return tuple(spec for spec in manifest if spec.name not in RESERVED)


def floats_of(manifest: Manifest) -> Manifest:
    """The tensors of floating-point numbers, which are what moves when a model trains."""
    return tuple(spec for spec in manifest if spec.is_float)


def check_finite(tensors: Tensors, what: str = "the model") -> None:
    """Refuse NaN and infinity, naming the tensor and how many values are wrong."""
    for spec in floats_of(manifest_of(tensors)):
        parts = (part_of(tensors, spec.name, block) for block in blocks(spec.size, 4 * BLOCK))
        if bad := sum(part.size - int(np.count_nonzero(np.isfinite(part))) for part in parts):
            raise BadPayload(
                f"{what}, tensor {spec.name!r}: {bad} of {spec.size} values are NaN or infinite",
                "if training diverged, lower learning_rate or set it to auto; or look at the device's data",
            )


def weighted_mean(parts: Iterable[tuple[Tensors, float]]) -> dict[str, Array]:
    """Mean of equal-shaped tensors, one pass, memory of one model whatever the number of parts.

    Sums are float64 and run in the order of `parts`: callers give device-id order, so that the result
    has the same bits in whatever order updates arrived. Integer tensors (a batch norm's counter) are
    averaged too and rounded to the nearest. The result has the dtypes of the first part.

    Raises ValueError when there are no parts or the weights do not sum to something positive.
    """
    sums: dict[str, Array] = {}
    dtypes: dict[str, np.dtype[np.generic]] = {}
    total = 0.0
    for tensors, weight in parts:
        if not sums:
            dtypes = {name: array.dtype for name, array in tensors.items()}
            sums = {name: np.zeros(array.shape, np.float64) for name, array in tensors.items()}
        for name, array in tensors.items():
            add_scaled(sums[name], array, weight)
        total += weight
    if not total > 0.0:
        raise ValueError(f"a mean needs parts with a positive weight in all, not {total}")
    return {name: finish(summed, total, dtypes[name]) for name, summed in sums.items()}


class Mixture(Lazy):
    """The weighted mean of some tensors, each made when it is asked for, as `weighted_mean` would.

    parts: equal-shaped, at least one, with weights of a positive sum. They must last as long as this does.
    """

    def __init__(self, parts: Sequence[tuple[Tensors, float]]) -> None:
        super().__init__(manifest_of(parts[0][0]))
        self._parts = tuple(parts)

    def __getitem__(self, name: str) -> Array:
        return weighted_mean(({name: tensors[name]}, weight) for tensors, weight in self._parts)[name]


def add_scaled(total: Array, array: Array, weight: float) -> None:
    """total += weight * array, a block at a time so that no temporary of the model's size is made."""
    flat_total, flat = total.reshape(-1), array.reshape(-1)
    for block in blocks(flat.size):
        scaled = flat[block].astype(np.float64)
        scaled *= weight
        flat_total[block] += scaled


def blocks(size: int, most: int = BLOCK) -> Iterator[slice]:
    """Slices of at most `most` elements that cover `size` of them."""
    return (slice(start, min(start + most, size)) for start in range(0, size, most))


def finish(summed: Array, total: float, dtype: np.dtype[np.generic]) -> Array:
    """The mean, of the sum and the total weight."""
    summed /= total
    return (np.rint(summed) if dtype.kind in "iub" else summed).astype(dtype)
