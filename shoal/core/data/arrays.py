"""Arrays from outside, checked before they become a `Dataset`: what is wrong is a DataFault that says where.

`what` names the source in an error: a file, or a device of a fleet.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from shoal.core.data.dataset import Dataset
from shoal.core.errors import DataFault
from shoal.core.types import Array

NAMES = {"U": "text", "S": "text", "O": "objects", "M": "dates", "m": "durations", "c": "complex numbers"}


def type_of(array: Array) -> str:
    """What an array holds, in words.

    Example:
        >>> type_of(np.array(["a"])), type_of(np.zeros(1))
        ('text', 'float64')
    """
    return NAMES.get(array.dtype.kind, str(array.dtype))


def samples(what: str, x: Array, divide_by: float | None = None) -> Array:
    """Samples as the library takes them: uint8 stays, other numbers become finite float32.

    uint8 is taken for pixels and becomes 0 to 1 only where it is used: until then it takes a quarter of the
    memory. `divide_by` overrules that. Raises DataFault for text, objects, NaN and infinity.
    """
    if x.dtype.kind not in "fiub":
        raise DataFault(f"{what}: x holds {type_of(x)}, not numbers", "turn it into numbers first")
    if x.dtype == np.uint8 and divide_by is None:
        return x
    with np.errstate(over="ignore"):
        numbers = x.astype(np.float32, copy=False)
    if not np.isfinite(numbers).all():
        place = np.unravel_index(int(np.isfinite(numbers).argmin()), x.shape)
        row, *column = (int(index) for index in place)
        where = f"row {row}, column {', '.join(map(str, column))}" if column else f"row {row}"
        raise DataFault(f"{what}: x holds {x[place]} in {where} (from 0)", "fill or drop such samples")
    return numbers if divide_by is None else numbers / np.float32(divide_by)


def network_input(x: Array) -> Array:
    """Samples as a network takes them: writable float32, or int64 where they are whole numbers.

    uint8 is read as pixels and becomes 0 to 1, as in torchvision's ToTensor, without any other normalization.
    Memory is shared where the type allows it. Raises DataFault on NaN, on infinity and on things that are not
    numbers.
    """
    if x.dtype == np.uint8:
        return np.divide(x, np.float32(255), dtype=np.float32)
    if x.dtype.kind not in "fiub":
        raise DataFault(f"x holds {type_of(x)}, not numbers", "turn its columns into numbers first")
    found = np.require(x, np.float32 if x.dtype.kind in "fb" else np.int64, ["C", "W"])
    if bad := int((~np.isfinite(found)).any(axis=tuple(range(1, found.ndim))).sum()):
        raise DataFault(f"{bad} of {len(x)} samples hold NaN or infinity", "fill or drop them")
    return found


def check_scales(parts: Iterable[tuple[str, Array]]) -> None:
    """Raises DataFault where some samples are bytes, which are divided by 255, and others are numbers on the
    scale that those had before. parts: samples that one network gets, and what they are called.

    Example:
        >>> check_scales([("ward-a", np.uint8([[0, 255]])), ("ward-b", np.float32([[0.0, 0.5]]))])
    """
    pixels, others = list[tuple[str, Array]](), list[tuple[str, Array]]()
    for what, x in parts:
        (pixels if x.dtype == np.uint8 else others).append((what, x))
    if not pixels or not others:
        return
    flags = max(int(x.max(initial=0)) for _, x in pixels) == 1  # bytes that are no pixels
    for what, x in others:
        if (most := x.max(initial=0)) > 1 or flags:
            raise DataFault(
                f"{what} has {x.dtype} up to {most:g}, and {pixels[0][0]} bytes, which are divided by 255",
                "bring all into one type: x.astype(numpy.uint8) for pixels of 0 to 255, else "
                "x.astype(numpy.float32)",
            )


def check_order(what: str, found: Sequence[str], other: str, known: Sequence[str], cure: str) -> None:
    """Raises DataFault where two tables have the same columns in another order: a network would take them
    for the same features.

    found, known: the names that count, of each. cure: how to bring them into one order.
    """
    if list(found) != list(known) and sorted(found) == sorted(known):
        place = next(place for place, name in enumerate(found) if name != known[place])
        raise DataFault(f"{what} has the column {found[place]!r} where {other} has {known[place]!r}", cure)


def targets(what: str, y: Array) -> Array:
    """Numbers to predict, as float32. Raises DataFault for what is not finite, or no number."""
    if y.ndim != 1:
        raise DataFault(
            f"{what}: y has shape {y.shape}", "give one number to predict for each sample, shape (n,)"
        )
    if y.dtype.kind == "O":  # a column of pandas, say
        y = np.array(y.tolist())
    if y.dtype.kind not in "fiub":
        raise DataFault(f"{what}: the labels are {type_of(y)}, not numbers", "regression predicts numbers")
    with np.errstate(over="ignore"):
        numbers = y.astype(np.float32)
    if not np.isfinite(numbers).all():
        row = int(np.isfinite(numbers).argmin())
        raise DataFault(f"{what}: the label of row {row} (from 0) is {y[row]}", "fill or drop such samples")
    return numbers


def column(y: Array) -> Array:
    """(n,) of labels that are (n, 1), as data frames and many files have them; others as they are."""
    return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y


def paired(what: str, x: Any, y: Any) -> Dataset:
    """A data set of samples and their classes, if any. Raises DataFault where they do not go together."""
    try:
        return Dataset(x, y)
    except ValueError as error:
        raise DataFault(f"{what}: {error}", "give one class for each sample, in the same order") from None
