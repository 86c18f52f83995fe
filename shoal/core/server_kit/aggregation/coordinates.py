"""The same coordinates of all updates: their mean, of those in the middle, or as `influence` says.

Threads (`aggregation.parallel`) do ranges of coordinates; the bits are the same.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from shoal.core.exchange.parts import FloatArray
from shoal.core.exchange.tensors import Lazy, blocks, finish, manifest_of, part_of
from shoal.core.server_kit.aggregation.influence import pulls, settled
from shoal.core.server_kit.aggregation.parallel import Piece, joined, pieces_of, results
from shoal.core.server_kit.aggregation.trimmed_mean import half, trimmed_mean, width_of
from shoal.core.types import Array, Tensors

TENTH = 10


class Clipped(Lazy):
    """What a device would have reported if its update had been `scale` times as long, 0 to 1.

    Whole numbers are as reported.
    """

    def __init__(self, model: Tensors, base: Tensors, scale: float) -> None:
        super().__init__(manifest_of(base))
        self._model, self._base, self._scale = model, base, scale

    def part(self, name: str, block: slice) -> Array:
        reported, start = part_of(self._model, name, block), part_of(self._base, name, block)
        if start.dtype.kind != "f":
            return reported
        if self._scale == 0.0:  # 0 times an infinite step would be NaN
            return start
        step = reported.astype(np.float64) - start
        return (start + self._scale * step).astype(start.dtype)

    def __getitem__(self, name: str) -> Array:
        like = self._base[name]
        found = np.empty(like.size, like.dtype)
        for block in blocks(like.size):
            found[block] = self.part(name, block)
        return found.reshape(like.shape)


def mean(parts: Sequence[tuple[Tensors, float]], base: Tensors) -> Tensors:
    """The weighted mean, with the bits of `weighted_mean`. base: tensors of the same shapes and types."""
    models, weights = zip(*parts, strict=True)
    total = 0.0
    for weight in weights:
        total += weight

    def of_piece(name: str, rows: Sequence[Array], like: Array) -> Array:
        found = np.empty(like.size, like.dtype)
        for block in blocks(found.size):
            summed = np.zeros(found[block].size)
            for row, weight in zip(rows, weights, strict=True):
                scaled = row[block].astype(np.float64)
                scaled *= weight
                summed += scaled
            found[block] = finish(summed, total, like.dtype)
        return found

    pieces = pieces_of(manifest_of(base), len(models))
    return joined(base, results(of_piece, models, base, pieces))


def middle(parts: Sequence[Tensors], like: Tensors, cut: int) -> Tensors:
    """For each tensor of `like`: the mean of each coordinate without its `cut` lowest and highest values.

    cut: less than half the number of parts. Whole numbers get the rounded median, whatever `cut` is.
    """

    def of_piece(name: str, rows: Sequence[Array], like: Array) -> Array:
        return _middle(rows, like.dtype, cut)

    pieces = pieces_of(manifest_of(like), len(parts))
    return joined(like, results(of_piece, parts, like, pieces))


def settle(
    parts: Sequence[Tensors], shares: Sequence[float], apart: Mapping[str, FloatArray], base: Tensors
) -> tuple[Tensors, float]:
    """The tensors of floats as `influence.settled` combines each of them, others as `middle` does; and the
    mean squared distance of the updates from the result, as they counted.

    shares: of the weight; they sum to 1. apart: by tensor of floats, as in `influence.pulls`. base: of the
    shapes and types of the parts.
    """
    weights, scatter = np.array(shares), 0.0
    scales = {}
    for name, distances in apart.items():
        scales[name], left = pulls(distances, weights)
        scatter += float((weights * left).sum())
    moves: list[float] = []

    def of_piece(name: str, rows: Sequence[Array], like: Array) -> tuple[Array, float]:
        if name not in scales:
            return _middle(rows, like.dtype, 0), 0.0
        return settled(rows, scales[name], like.dtype)

    def values() -> Iterator[tuple[Piece, Array]]:
        pieces = pieces_of(manifest_of(base), len(parts))
        for piece, (made, square) in results(of_piece, parts, base, pieces):
            moves.append(square)
            yield piece, made

    found = joined(base, values())
    return found, max(scatter - sum(moves), 0.0)


def tenth(count: int) -> int:
    """How many of `count` values to leave out at each end for `trimmed`: at least one, as long as one
    remains."""
    return min(max(count // TENTH, 1), half(count))


def _middle(rows: Sequence[Array], dtype: np.dtype[np.generic], cut: int) -> Array:
    found = np.empty(rows[0].size, dtype)
    for block in blocks(found.size, width_of(len(rows))):
        values = trimmed_mean([row[block] for row in rows], cut if dtype.kind == "f" else half(len(rows)))
        found[block] = values if dtype.kind == "f" else np.rint(values)
    return found
