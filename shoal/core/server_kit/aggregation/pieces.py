"""Sums over all updates, cut into ranges of parameters, so that workers can compute them side by side.

A worker takes some ranges of every update, in the order of the devices, and does with them what one process
would do. No sum is ever split between workers: each coordinate is computed once, from all updates, and what
is added over coordinates (the length of an update) is added by the caller, block by block in the usual order.
So a model has the same bits with any number of workers, and the robust rules, which need all updates of a
coordinate, work as well as the mean.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from shoal.core.exchange.tensors import Lazy
from shoal.core.types import Array, Tensors

WORTH = 1 << 22
"""Values of all updates together from which on workers are worth their trouble: 16 MB of float32."""
SHARES = 4
"""Jobs for each worker, so that a slow one does not hold up the others."""

Piece = tuple[str, int, int]
"""A range of the coordinates of a tensor: its name, the first one, and the one after the last."""


@dataclass(frozen=True, eq=False)
class Part:
    """An update, for a worker. scale: the factor by which it is shortened; None: it stays as reported.

    weight: in any unit; for "settle" the shares of all sum to 1."""

    model: Tensors
    scale: float | None = None
    weight: float = 1.0


@dataclass(frozen=True, eq=False)
class Job:
    """Some pieces of every update. work: what to do with them. base: the same pieces of the model before.

    total: the sum of all weights. cut: as in `coordinates.middle`, for tensors of floats.
    """

    work: str
    parts: tuple[Part, ...]
    pieces: tuple[Piece, ...]
    base: Mapping[Piece, Array]
    total: float = 0.0
    cut: int = 0


class Workers(Protocol):
    """Who does the jobs, and how many they are. Results come in the order of the jobs."""

    count: int

    def map(self, jobs: Sequence[Job]) -> Sequence[list[Any]]: ...


_workers: ContextVar[Workers | None] = ContextVar("workers", default=None)


@contextmanager
def spread_over(workers: Workers | None) -> Iterator[None]:
    """Let these workers do the sums of the block."""
    token = _workers.set(workers)
    try:
        yield
    finally:
        _workers.reset(token)


def helpers(models: Sequence[Tensors]) -> Workers | None:
    """The workers for sums over these updates; None if they are too small, or only this process has them."""
    found = _workers.get()
    if found is None or not all(isinstance(model, Lazy) and model.portable for model in models):
        return None
    return found if sum(array.size for array in models[0].values()) * len(models) >= WORTH else None


def pieces_of(like: Tensors, most: Mapping[str, int]) -> list[Piece]:
    """All coordinates of these tensors, at most `most` in a piece."""
    return [
        (name, start, min(start + most[name], array.size))
        for name, array in like.items()
        for start in range(0, array.size, most[name])
    ]


def results(
    workers: Workers, work: str, parts: Sequence[Part], base: Tensors, pieces: Sequence[Piece], **more: float
) -> dict[Piece, Any]:
    """What came of each piece."""
    most = max(1, -(-len(pieces) // (SHARES * workers.count)))
    jobs = []
    for start in range(0, len(pieces), most):
        own = tuple(pieces[start : start + most])
        bases = {piece: base[piece[0]].reshape(-1)[piece[1] : piece[2]] for piece in own}
        jobs.append(Job(work, tuple(parts), own, bases, **more))  # type: ignore[arg-type]
    found = workers.map(jobs)
    return {
        piece: value
        for job, values in zip(jobs, found, strict=True)
        for piece, value in zip(job.pieces, values, strict=True)
    }


def joined(like: Tensors, found: Mapping[Piece, Array]) -> dict[str, Array]:
    """Whole tensors, of their pieces."""
    whole = {name: np.empty(array.size, array.dtype) for name, array in like.items()}
    for (name, start, stop), values in found.items():
        whole[name][start:stop] = values
    return {name: array.reshape(like[name].shape) for name, array in whole.items()}
