"""Sums over all updates, cut into ranges of parameters, so that threads can compute them side by side.

A thread takes a range of every update, in the order of the devices. No sum is ever split between threads:
each coordinate is computed once, from all updates, and what is added over coordinates (the length of an
update) is added by the caller, block by block in the usual order. So a model has the same bits with any
number of threads, and the robust rules, which need all updates of a coordinate, work as well as the mean.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import numpy as np

from shoal.core.exchange.tensors import BLOCK, DTYPES, Manifest, blocks, manifest_of, part_of
from shoal.core.server_kit.clustering.distances import MATRIX
from shoal.core.types import Array, Tensors

T = TypeVar("T")

MIN_VALUES_FOR_THREADS = 1 << 22
"""Values of all updates together from which on threads are worth their trouble: 16 MB of float32."""
AT_ONCE = 4
"""Pieces that are in memory at a time, and so the threads that gain anything."""
LARGEST = 4 * BLOCK
"""Coordinates of a piece: of few updates, all of it stays in the processor's cache."""

Piece = tuple[str, int, int]
"""A range of the coordinates of a tensor: its name, the first one, and the one after the last."""


_threads: ContextVar[Executor | None] = ContextVar("threads", default=None)


@contextmanager
def spread_over(threads: Executor | None) -> Iterator[None]:
    """Let these do the sums of the block."""
    token = _threads.set(threads)
    try:
        yield
    finally:
        _threads.reset(token)


def pieces_of(like: Manifest, parts: int, together: int = MATRIX) -> list[Piece]:
    """All coordinates of such tensors, in pieces of which this many parts have at most `together` bytes."""
    found = []
    for spec in like:
        most = min(max(1, together // (DTYPES[spec.dtype].itemsize * parts)), LARGEST)
        most -= most % BLOCK if most > BLOCK else 0
        found += [(spec.name, block.start, block.stop) for block in blocks(spec.size, most)]
    return found


def results(
    work: Callable[[str, Sequence[Array], Array], T],
    models: Sequence[Tensors],
    base: Tensors,
    pieces: Sequence[Piece],
) -> Iterator[tuple[Piece, T]]:
    """What comes of each piece, in their order. work: given the name of the tensor, the piece of each model,
    and that of `base`."""

    def done(piece: Piece) -> tuple[Piece, T]:
        name, part = piece[0], slice(*piece[1:])
        rows = [part_of(model, name, part) for model in models]
        return piece, work(name, rows, part_of(base, name, part))

    threads, values = _threads.get(), len(models) * sum(stop - start for _, start, stop in pieces)
    if threads is None or values < MIN_VALUES_FOR_THREADS:
        yield from map(done, pieces)
        return
    begun = deque[Future[tuple[Piece, T]]]()
    for piece in pieces:
        begun.append(threads.submit(done, piece))
        if len(begun) == AT_ONCE:
            yield begun.popleft().result()
    while begun:
        yield begun.popleft().result()


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
