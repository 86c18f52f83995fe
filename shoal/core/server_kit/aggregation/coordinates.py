"""The same coordinates of all updates: their mean, or the mean of those in the middle.

With workers (`aggregation.pieces`), each of them does some ranges of coordinates; the bits are the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from shoal.core.exchange.tensors import BLOCK, add_scaled, finish, weighted_mean
from shoal.core.server_kit.aggregation.pieces import (
    Job,
    Part,
    Piece,
    Workers,
    helpers,
    joined,
    pieces_of,
    results,
    squares_of,
)
from shoal.core.server_kit.clustering.distances import MATRIX
from shoal.core.types import Array, Tensors

TENTH = 10


class Clipped(Mapping[str, Array]):
    """What a device would have reported if its update had been `scale` times as long, 0 to 1.

    A tensor is computed when it is requested. Whole numbers are as reported.
    """

    def __init__(self, model: Tensors, base: Tensors, scale: float) -> None:
        self._model, self._base, self._scale = model, base, scale

    def sent(self, base: Tensors) -> Part | None:
        """For a worker that has the base; None if this has another base."""
        return Part(self._model, self._scale) if self._base is base else None

    def part(self, name: str, block: slice) -> Array:
        """Some coordinates of a tensor."""
        reported, start = _values(self._model, name, block), _values(self._base, name, block)
        if start.dtype.kind != "f":
            return reported
        if self._scale == 0.0:  # 0 times an infinite step would be NaN
            return start
        step = reported.astype(np.float64) - start
        return (start + self._scale * step).astype(start.dtype)

    def __getitem__(self, name: str) -> Array:
        like = self._base[name]
        found = np.empty(like.size, like.dtype)
        for block in blocks(like.size, BLOCK):
            found[block] = self.part(name, block)
        return found.reshape(like.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._model)

    def __len__(self) -> int:
        return len(self._model)


# -- rules over coordinates ---------------------------------------------------------------------------------


def middle(parts: Sequence[Tensors], like: Tensors, cut: int) -> dict[str, Array]:
    """For each tensor of `like`: the mean of each coordinate without its `cut` lowest and highest values.

    cut: less than half the number of parts. Whole numbers get the rounded median, whatever `cut` is.
    """
    if found := _sent(parts, like):
        workers, sent = found
        most = {name: _most(len(parts), array.size) for name, array in like.items()}
        return joined(like, results(workers, "middle", sent, like, pieces_of(like, most), cut=cut))
    return {
        name: _middle(parts, name, array, cut if array.dtype.kind == "f" else half(len(parts)))
        for name, array in like.items()
    }


def _middle(parts: Sequence[Tensors], name: str, like: Array, cut: int) -> Array:
    result = np.empty(like.size, like.dtype)
    most = _most(len(parts), like.size)
    matrix = np.empty((len(parts), most))
    for block in blocks(like.size, most):
        rows = matrix[:, : result[block].size]
        # Mapped files are opened for each block and closed again, so tensors never accumulate in memory.
        for row, part in zip(rows, parts, strict=True):
            row[:] = _values(part, name, block)
        result[block] = _middle_of(rows, cut, like.dtype)
    return result.reshape(like.shape)


def _most(parts: int, size: int) -> int:
    """How many coordinates are looked at together: as many as fit. Workers take as many, for the same
    bits."""
    return max(1, min(MATRIX // (8 * parts), size))


def _middle_of(rows: Array, cut: int, dtype: "np.dtype[np.generic]") -> Array:
    """The middle of each column; the rows are sorted in place."""
    rows.sort(axis=0)
    left = rows[cut : len(rows) - cut]
    with np.errstate(over="ignore"):
        mean: Array = left.sum(axis=0) / len(left)
    np.clip(mean, left[0], left[-1], out=mean)  # a rounding error must not leave the range
    return (mean if dtype.kind == "f" else np.rint(mean)).astype(dtype)


def tenth(count: int) -> int:
    """How many of `count` values to leave out at each end for `trimmed`: at least one, as long as one
    remains."""
    return min(max(count // TENTH, 1), half(count))


def half(count: int) -> int:
    """How many of `count` values to leave out at each end so that one or two remain."""
    return (count - 1) // 2


def _values(tensors: Tensors, name: str, block: slice) -> Array:
    """Some coordinates of a tensor, in memory order."""
    return tensors.part(name, block) if isinstance(tensors, Clipped) else tensors[name].reshape(-1)[block]


# -- with workers -------------------------------------------------------------------------------------------


def _sent(parts: Sequence[Tensors], base: Tensors) -> tuple[Workers, list[Part]] | None:
    """The workers, and the parts as they get them; None without workers."""
    sent = [part.sent(base) if isinstance(part, Clipped) else Part(part) for part in parts]
    known = [each for each in sent if each is not None]
    workers = helpers([each.model for each in known]) if len(known) == len(parts) else None
    return None if workers is None else (workers, known)


def mean(parts: Sequence[tuple[Tensors, float]], base: Tensors) -> dict[str, Array]:
    """The weighted mean, as `weighted_mean`. base: tensors of the same shapes, by which it is cut."""
    found = _sent([tensors for tensors, _ in parts], base)
    total = 0.0
    for _, weight in parts:
        total += weight
    if found is None or not total > 0.0:  # tensor by tensor: the sums of one of them are in memory
        return {
            name: weighted_mean(({name: tensors[name]}, weight) for tensors, weight in parts)[name]
            for name in base
        }
    workers, sent = found
    weighted = [replace(part, weight=weight) for part, (_, weight) in zip(sent, parts, strict=True)]
    pieces = pieces_of(base, dict.fromkeys(base, BLOCK))
    return joined(base, results(workers, "mean", weighted, base, pieces, total=total))


def done(job: Job) -> list[Array]:
    """What a worker makes of a job: a value for each of its pieces."""
    work = {"mean": _mean_in, "squares": squares_of, "middle": _middle_in}[job.work]
    return [work(job, piece) for piece in job.pieces]


def _mean_in(job: Job, piece: Piece) -> Array:
    """As `shoal.core.exchange.tensors.weighted_mean`."""
    summed = np.zeros(piece[2] - piece[1], np.float64)
    for part in job.parts:
        add_scaled(summed, _reported(job, part, piece), part.weight)
    return finish(summed, job.total, job.base[piece].dtype)


def _middle_in(job: Job, piece: Piece) -> Array:
    dtype = job.base[piece].dtype
    rows = np.empty((len(job.parts), piece[2] - piece[1]))
    for row, part in zip(rows, job.parts, strict=True):
        row[:] = _reported(job, part, piece)
    return _middle_of(rows, job.cut if dtype.kind == "f" else half(len(job.parts)), dtype)


def _reported(job: Job, part: Part, piece: Piece) -> Array:
    """A piece of an update, shortened if it was clipped."""
    name, start, stop = piece
    values = _values(part.model, name, slice(start, stop))
    if part.scale is None:
        return values
    return Clipped({name: values}, {name: job.base[piece]}, part.scale).part(name, slice(0, stop - start))


def blocks(size: int, most: int) -> Iterator[slice]:
    """Slices of at most `most` coordinates, at least one, that cover `size` of them."""
    return (slice(start, start + max(most, 1)) for start in range(0, size, max(most, 1)))
