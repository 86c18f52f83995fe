"""Which data a release was made from: a hash that is the same for the same samples, in whatever order; and
which of the samples are the same one, there several times."""

from collections.abc import Iterable, Iterator
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from shoal.core.data.dataset import Dataset

Numbers = npt.NDArray[np.int64]


def version(parts: Iterable[Dataset], labels: bool) -> str:
    """SHA-256, 64 hex digits, over the samples of all parts, and their classes where `labels` matter.

    Without labels it is that of the samples alone: data that lose or change their labels stay the same data.
    It does not depend on how samples are ordered and split into parts. A sample that is there twice counts
    twice.
    """
    parts = list(parts)
    kinds = {f"{part.x.dtype.str} {part.x.shape[1:]}" for part in parts}
    samples = sorted(_hashes(parts, labels))
    return sha256("\n".join([*sorted(kinds), ""]).encode() + b"".join(samples)).hexdigest()


def distinct(parts: Iterable[Dataset], labels: bool) -> Numbers:
    """(n,) int64: a number for each sample of all parts, in order, that is the same for the same sample, and
    for the same sample of the same class where `labels` matter."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(each, len(numbers)) for each in _hashes(parts, labels)], np.int64)


def _hashes(parts: Iterable[Dataset], labels: bool) -> Iterator[bytes]:
    for part in parts:
        rows = np.ascontiguousarray(part.x)
        for number in range(len(part)):
            classes = b"" if part.y is None or not labels else int(part.y[number]).to_bytes(8, "big")
            yield sha256(classes + rows[number].tobytes()).digest()
