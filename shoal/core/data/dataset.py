"""A data set in memory: examples and, where they are known, their classes, or the numbers to predict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples and their classes. The arrays are shared with the caller, not copied.

    `x`: (n, ...) any dtype, one example per row.
    `y`: (n,) int64, the class of each row, 0 or more; None if the data are unlabeled. Any integer dtype is
    accepted and stored as int64. For regression, (n,) float32, the number to predict; any floating dtype is
    accepted and stored as float32.

    Raises ValueError when the lengths differ, or when `y` is not one class or one finite number per row.

    Example:
        >>> data = Dataset(np.zeros((3, 2), np.float32), np.array([0, 1, 1]))
        >>> len(data), data.subset(slice(0, 2)).y
        (3, array([0, 1]))
    """

    x: npt.NDArray[Any]
    y: npt.NDArray[Any] | None = None

    def __post_init__(self) -> None:
        if self.x.ndim == 0:
            raise ValueError("x is a single number: give an array with one example per row")
        if self.y is None:
            return
        if self.y.dtype.kind not in "iuf":
            raise ValueError(f"y holds {self.y.dtype}, not numbers: give the class number of each example")
        if self.y.ndim != 1:
            raise ValueError(f"y has shape {self.y.shape}: give one class number per example, shape (n,)")
        if len(self.x) != len(self.y):
            raise ValueError(
                f"x has {len(self.x)} examples but y has {len(self.y)} labels: they must pair up"
            )
        if self.y.dtype.kind == "f":
            with np.errstate(over="ignore"):
                object.__setattr__(self, "y", self.y.astype(np.float32, copy=False))
            if not np.isfinite(self.y).all():
                raise ValueError("y holds NaN, infinity or numbers above float32: fill or drop such examples")
            return
        object.__setattr__(self, "y", self.y.astype(np.int64, copy=False))
        if self.y.min(initial=0) < 0:
            raise ValueError(f"y has the negative class {self.y.min()}: number the classes from 0")

    def __len__(self) -> int:
        return len(self.x)

    def subset(self, indices: npt.NDArray[np.integer[Any]] | npt.NDArray[np.bool_] | slice) -> Dataset:
        """The rows at `indices`, in that order, repeats kept. A slice shares memory, an array copies."""
        return Dataset(self.x[indices], None if self.y is None else self.y[indices])
