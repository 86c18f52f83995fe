"""Sums over all updates, cut into ranges of parameters, so that workers can compute them side by side.

A worker takes some ranges of every update, in the order of the devices, and does with them what one process
would do. No sum is ever split between workers: each coordinate is computed once, from all updates, and what
is added over coordinates (the length of an update) is added by the caller, block by block in the usual order.
So a model has the same bits with any number of workers, and the robust rules, which need all updates of a
coordinate, work as well as the mean.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from shoal.core.exchange.parts import FloatArray
from shoal.core.exchange.tensors import BLOCK, DTYPES, Lazy, Manifest, blocks, manifest_of, part_of
from shoal.core.server_kit.clustering.distances import MATRIX
from shoal.core.types import Array, Tensors

T = TypeVar("T")

MIN_VALUES_FOR_WORKERS = 1 << 22
"""Values of all updates together from which on workers are worth their trouble: 16 MB of float32."""
JOBS_PER_WORKER = 4
"""Jobs for each worker, so that a slow one does not hold up the others."""
LARGEST = 4 * BLOCK
"""Coordinates of a piece: of few updates, all of it stays in the processor's cache."""

Piece = tuple[str, int, int]
"""A range of the coordinates of a tensor: its name, the first one, and the one after the last."""


@dataclass(frozen=True, eq=False)
class Part:
    """An update. scale: the factor by which it is shortened; None: it stays as reported.

    weight: in any unit."""

    model: Tensors
    scale: float | None = None
    weight: float = 1.0


@dataclass(frozen=True, eq=False)
class Job:
    """Some pieces of every update. work: what to do with each of them. base: the same pieces of the model
    before.

    total: the sum of all weights. cut: as in `coordinates.middle`, for tensors of floats. scales: by tensor,
    as in `influence.settled`.
    """

    work: "Callable[[Job, Piece], Any]"
    parts: tuple[Part, ...]
    pieces: tuple[Piece, ...]
    base: Mapping[Piece, Array]
    total: float = 0.0
    cut: int = 0
    scales: Mapping[str, FloatArray] = field(default_factory=dict)

    def done(self) -> list[Any]:
        """A value for each of the pieces."""
        return [self.work(self, piece) for piece in self.pieces]


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


def _helpers(models: Sequence[Tensors]) -> Workers | None:
    """The workers for sums over these updates; None if they are too small, or only this process has them."""
    found = _workers.get()
    if found is None or not all(isinstance(model, Lazy) and model.portable for model in models):
        return None
    return (
        found
        if sum(spec.size for spec in manifest_of(models[0])) * len(models) >= MIN_VALUES_FOR_WORKERS
        else None
    )


def pieces_of(like: Manifest, parts: int, together: int = MATRIX) -> list[Piece]:
    """All coordinates of such tensors, in pieces of which this many parts have at most `together` bytes."""
    found = []
    for spec in like:
        most = min(max(1, together // (DTYPES[spec.dtype].itemsize * parts)), LARGEST)
        most -= most % BLOCK if most > BLOCK else 0
        found += [(spec.name, block.start, block.stop) for block in blocks(spec.size, most)]
    return found


def results(
    work: Callable[[Job, Piece], T],
    parts: Sequence[Part],
    base: Tensors,
    pieces: Sequence[Piece],
    **more: Any,
) -> Iterator[tuple[Piece, T]]:
    """What comes of each piece, in their order. work: a function of a module, which workers can find."""

    def job(own: Sequence[Piece]) -> Job:
        bases = {piece: part_of(base, piece[0], slice(*piece[1:])) for piece in own}
        return Job(work, tuple(parts), tuple(own), bases, **more)

    workers = _helpers([part.model for part in parts])
    if workers is None:
        for piece in pieces:
            yield piece, job([piece]).done()[0]
        return
    most = max(1, -(-len(pieces) // (JOBS_PER_WORKER * workers.count)))
    shares = [pieces[start : start + most] for start in range(0, len(pieces), most)]
    for own, values in zip(shares, workers.map([job(own) for own in shares]), strict=True):
        yield from zip(own, values, strict=True)


def in_memory(like: Manifest, found: Iterable[tuple[Piece, Array]]) -> dict[str, Array]:
    """Whole tensors, of their pieces."""
    whole = {spec.name: np.empty(spec.shape, DTYPES[spec.dtype]) for spec in like}
    for (name, start, stop), values in found:
        whole[name].reshape(-1)[start:stop] = values
    return whole


Maker = Callable[[Manifest, Iterable[tuple[Piece, Array]]], Tensors]
"""Makes whole tensors of their pieces, which come in the order of the manifest, and says where they stay."""
_maker: ContextVar[Maker] = ContextVar("maker", default=in_memory)


@contextmanager
def made_by(maker: Maker) -> Iterator[None]:
    """Let this make the models of the block."""
    token = _maker.set(maker)
    try:
        yield
    finally:
        _maker.reset(token)


def joined(like: Tensors, found: Iterable[tuple[Piece, Array]]) -> Tensors:
    """The tensors of these pieces, which are those of `pieces_of`, in its order."""
    return _maker.get()(manifest_of(like), found)
