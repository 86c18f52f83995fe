"""Which data a release was made from: a hash that is the same for the same samples, in whatever order."""

from collections.abc import Iterable
from hashlib import sha256

import numpy as np

from fedcore.data.dataset import Dataset


def version(parts: Iterable[Dataset], labels: bool) -> str:
    """SHA-256, 64 hex digits, over the samples of all parts, and their classes where `labels` matter.

    Without labels it is that of the samples alone: data that lose or change their labels stay the same data.
    It does not depend on how samples are ordered and split into parts. A sample that is there twice counts
    twice.
    """
    samples: list[bytes] = []
    kinds = set()
    for part in parts:
        kinds.add(f"{part.x.dtype.str} {part.x.shape[1:]}")
        rows = np.ascontiguousarray(part.x)
        for number in range(len(part)):
            classes = b"" if part.y is None or not labels else int(part.y[number]).to_bytes(8, "big")
            samples.append(sha256(classes + rows[number].tobytes()).digest())
    return sha256("\n".join([*sorted(kinds), ""]).encode() + b"".join(sorted(samples))).hexdigest()
