"""The version of a data set: a hash of its samples that does not depend on their order. Also numbers the
samples, so that equal ones have the same number."""

from collections.abc import Iterable, Iterator
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from shoal.core.data.dataset import Dataset

Numbers = npt.NDArray[np.int64]


def version(parts: Iterable[Dataset]) -> str:
    """SHA-256, 64 hex digits, of the samples of all parts.

    Data that lose or change their labels stay the same data. The version does not depend on how samples are
    ordered and split into parts. A repeated sample counts each time.
    """
    parts = list(parts)
    kinds = {f"{part.x.dtype.str} {part.x.shape[1:]}" for part in parts}
    samples = sorted(_hashes(parts, labels=False))
    return sha256("\n".join([*sorted(kinds), ""]).encode() + b"".join(samples)).hexdigest()


def distinct(parts: Iterable[Dataset], labels: bool) -> Numbers:
    """(n,) int64: a number for each sample of all parts, in order; equal samples (of the same class, where
    `labels` matter) have the same number."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(each, len(numbers)) for each in _hashes(parts, labels)], np.int64)


def _hashes(parts: Iterable[Dataset], labels: bool) -> Iterator[bytes]:
    for part in parts:
        rows = np.ascontiguousarray(part.x)
        for number in range(len(part)):
            classes = b"" if part.y is None or not labels else _label(part.y[number])
            yield sha256(classes + rows[number].tobytes()).digest()


def _label(value: np.generic) -> bytes:
    """A class, or a number of regression, in as many bytes."""
    return value.tobytes().rjust(8, b"\1") if value.dtype.kind == "f" else int(value).to_bytes(8, "big")
