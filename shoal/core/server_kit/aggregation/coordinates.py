"""The same coordinates of all updates: their mean, of those in the middle, or as `influence` says.

With workers (`aggregation.pieces`), each of them does some ranges of coordinates; the bits are the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.core.exchange.parts import FloatArray
from shoal.core.exchange.tensors import BLOCK, add_scaled, finish, weighted_mean
from shoal.core.server_kit.aggregation.influence import Settled, half, middle_of, settled
from shoal.core.server_kit.aggregation.pieces import (
    Job,
    Part,
    Piece,
    Workers,
    helpers,
    joined,
    pieces_of,
    results,
)
from shoal.core.server_kit.aggregation.survey import bearings_in
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


def settle(
    parts: Sequence[Tensors], shares: Sequence[float], base: Tensors
) -> tuple[dict[str, Array], float]:
    """The tensors of floats, as `influence.settled` combines each of them; and how far the updates scatter,
    over all tensors.

    shares: of the weight; they sum to 1. base: of the shapes and types of the parts.
    """
    whole = {
        name: np.empty(array.size, array.dtype) for name, array in base.items() if array.dtype.kind == "f"
    }
    pieces = pieces_of(whole, {name: _most(len(parts), array.size) for name, array in whole.items()})
    if sent := _sent(parts, base):
        weighted = [replace(part, weight=share) for part, share in zip(sent[1], shares, strict=True)]
        made: Mapping[Piece, Settled] | None = results(sent[0], "settle", weighted, base, pieces)
    else:
        made = None
    scatter, weights = 0.0, np.array(shares)
    for piece in pieces:
        name, start, stop = piece
        found = made[piece] if made else settled(_rows(parts, piece), weights, whole[name].dtype)
        whole[name][start:stop] = found.values
        scatter += found.scatter
    return {name: array.reshape(base[name].shape) for name, array in whole.items()}, scatter


def _rows(parts: Sequence[Tensors], piece: Piece) -> FloatArray:
    name, start, stop = piece
    rows = np.empty((len(parts), stop - start))
    # Mapped files are opened for each block and closed again, so tensors never accumulate in memory.
    for row, part in zip(rows, parts, strict=True):
        row[:] = _values(part, name, slice(start, stop))
    return rows


def _middle(parts: Sequence[Tensors], name: str, like: Array, cut: int) -> Array:
    result = np.empty(like.size, like.dtype)
    for piece in pieces_of({name: like}, {name: _most(len(parts), like.size)}):
        result[piece[1] : piece[2]] = _as(middle_of(_rows(parts, piece), cut), like.dtype)
    return result.reshape(like.shape)


def _most(parts: int, size: int) -> int:
    """How many coordinates are looked at together: as many as fit. Workers take as many, for the same
    bits."""
    return max(1, min(MATRIX // (8 * parts), size))


def _as(values: FloatArray, dtype: "np.dtype[np.generic]") -> Array:
    return (values if dtype.kind == "f" else np.rint(values)).astype(dtype)


def tenth(count: int) -> int:
    """How many of `count` values to leave out at each end for `trimmed`: at least one, as long as one
    remains."""
    return min(max(count // TENTH, 1), half(count))


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


def done(job: Job) -> list[Any]:
    """What a worker makes of a job: a value for each of its pieces."""
    work = WORKS[job.work]
    return [work(job, piece) for piece in job.pieces]


def _mean_in(job: Job, piece: Piece) -> Array:
    """As `shoal.core.exchange.tensors.weighted_mean`."""
    summed = np.zeros(piece[2] - piece[1], np.float64)
    for part in job.parts:
        add_scaled(summed, _reported(job, part, piece), part.weight)
    return finish(summed, job.total, job.base[piece].dtype)


def _middle_in(job: Job, piece: Piece) -> Array:
    dtype = job.base[piece].dtype
    rows = _rows_in(job, piece)
    return _as(middle_of(rows, job.cut if dtype.kind == "f" else half(len(rows))), dtype)


def _settle_in(job: Job, piece: Piece) -> Settled:
    shares = np.array([part.weight for part in job.parts])
    return settled(_rows_in(job, piece), shares, job.base[piece].dtype)


def _rows_in(job: Job, piece: Piece) -> FloatArray:
    rows = np.empty((len(job.parts), piece[2] - piece[1]))
    for row, part in zip(rows, job.parts, strict=True):
        row[:] = _reported(job, part, piece)
    return rows


def _reported(job: Job, part: Part, piece: Piece) -> Array:
    """A piece of an update, shortened if it was clipped."""
    name, start, stop = piece
    values = _values(part.model, name, slice(start, stop))
    if part.scale is None:
        return values
    return Clipped({name: values}, {name: job.base[piece]}, part.scale).part(name, slice(0, stop - start))


WORKS: Mapping[str, Callable[[Job, Piece], Any]] = {
    "mean": _mean_in,
    "middle": _middle_in,
    "settle": _settle_in,
    "bearings": bearings_in,
}


def blocks(size: int, most: int) -> Iterator[slice]:
    """Slices of at most `most` coordinates, at least one, that cover `size` of them."""
    return (slice(start, start + max(most, 1)) for start in range(0, size, max(most, 1)))
