"""Blocks of constant shape, in which only a sample's own content decides about its slot.

What a network computes for one row of a batch depends, in its last bits, on how many rows there are: a matrix
library chooses another routine for another shape. With ordinary weights that does no harm. A hostile server
can choose weights that amplify rounding until the last bits decide everything, and then one sample more in a
batch changes the results of all others.

So what has a privacy guarantee is computed in blocks of one constant shape. The hash of a sample gives its
slot, the r-th sample with that slot enters block r, and slots that stay empty hold zeros. With one sample
more or less, every other sample stands in the same slot of a block of the same shape, and has the same
result.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from shoal.core.device_kit.samples import Samples

SLOTS = 16
"""Rows of a block. Fewer of them mean more calls, and more of them mean that most stay empty."""

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Block:
    """x: (S, ...). y: (S,) or None. Both hold zeros where a slot is empty. rows: (S,), numbers of samples, or
    -1. Memory is torch's own, which is always aligned alike: routines also depend on that.
    """

    x: Tensor
    y: Tensor | None
    rows: Tensor

    @property
    def filled(self) -> Tensor:
        """(S,) bool."""
        return self.rows >= 0


def slots_of(samples: Samples, count: int = SLOTS) -> Rows:
    """(n,) the slot of each sample, from 0 to count - 1, by the hash of its content and its class.

    Equal samples are told apart by counting them, so that a data set of many equal ones still fills blocks.
    """
    x = np.ascontiguousarray(samples.x.cpu().numpy())
    y = np.zeros(len(x), np.int64) if samples.y is None else samples.y.cpu().numpy()
    seen: Counter[bytes] = Counter()
    found = np.empty(len(x), np.intp)
    for number, (row, label) in enumerate(zip(x, y, strict=True)):
        content = sha256(row.tobytes() + int(label).to_bytes(8, "big", signed=True)).digest()
        found[number] = (int.from_bytes(content[:8], "big") + seen[content]) % count
        seen[content] += 1
    return found


def blocks(samples: Samples, slots: Rows, rows: Rows, count: int = SLOTS) -> Iterator[Block]:
    """The samples with these numbers, each in its slot. slots: of all samples."""
    for layer in layers(slots[rows], count):
        chosen = np.where(layer < 0, -1, rows[layer])
        numbers = torch.from_numpy(chosen).to(samples.x.device)
        empty, safe = numbers < 0, numbers.clamp(min=0)
        x = samples.x.index_select(0, safe)
        x[empty] = 0
        y = None if samples.y is None else samples.y.index_select(0, safe).masked_fill(empty, 0)
        yield Block(x, y, numbers)


def layers(slots: Rows, count: int) -> Rows:
    """(L, count) positions in `slots`, (m,), by slot, -1 where there is none; the r-th of a slot is in row r.

    Example:
        >>> layers(np.array([1, 0, 1]), 2).tolist()
        [[1, 0], [-1, 2]]
    """
    order = np.argsort(slots, kind="stable")
    arranged = slots[order]
    ranks = np.arange(len(slots)) - np.searchsorted(arranged, arranged)
    found = np.full((int(ranks.max(initial=-1)) + 1, count), -1, np.intp)
    found[ranks, arranged] = order
    return found
