"""Labels as people have them, and the numbers that stand for them: classes 0 to C-1.

Text, booleans and whole numbers can be labels. Whole numbers from 0 without gaps are classes as they are; all
others are names. Who knows the labels of all devices, as a simulation does, numbers the names of all of them:

    names = names_of({"ward-a": [np.array(["ill", "well"])], "ward-b": [np.array(["ill"])]})    # ill, well
    placed("ward-b", np.array(["ill"]), names)                                                   # 0

A real device knows only its own, and two devices that lack different classes would number the same words
differently. So it takes numbers as they are (`numbers`), or a list of all names that its owner gives
(`placed`).
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from shoal.core.data.arrays import type_of
from shoal.core.errors import DataFault, near
from shoal.core.types import Array

MAX_CLASS = 1 << 31
SHOWN, WRITTEN = 8, 50
"""Names that a sentence lists, and names that are written out for a settings file."""
PLAIN = re.compile(r"\w[\w .+-]*(?<! )")
"""A name that YAML reads as a text without quotes."""
BOOLEANS = ("False", "True")

Named = Callable[[int], str]
"""How an error names the label of a row."""


def by_row(row: int) -> str:
    return f"the label of row {row} (from 0)"


def read(what: str, y: Array, named: Named = by_row) -> Array:
    """Labels as one of three: (n,) int64, bool, or text.

    Whole numbers may be floats, which csv files and numpy produce easily, and may be below 0. what: names the
    source in an error: a file, or a device of a fleet. Raises DataFault for labels that are missing, are
    fractions or are of several kinds.
    """
    if y.ndim != 1:
        raise DataFault(
            f"{what}: y has shape {y.shape}",
            "give one label for each sample, shape (n,); of one-hot labels, y.argmax(axis=1)",
        )
    if y.dtype.kind == "O":
        y = _of_objects(what, y, named)
    if y.dtype.kind == "S":
        y = np.char.decode(y, "utf-8", "replace")
    if y.dtype.kind == "U":
        # numpy and pandas write a missing value as nan where they make text of numbers.
        missing = np.isin(np.char.strip(y), ("", "nan", "NaN"))
        if missing.any():
            raise DataFault(f"{what}: {named(int(missing.argmax()))} is missing", "fill or drop such samples")
        return y
    if y.dtype.kind == "b":
        return y
    if y.dtype.kind not in "fiu":
        raise DataFault(f"{what}: the labels are {type_of(y)}", "labels are text, booleans or whole numbers")
    right = np.isfinite(y) & (y == np.floor(y)) & (y > -MAX_CLASS) & (y < MAX_CLASS)
    if not right.all():
        row = int(right.argmin())
        if is_missing(y[row]):
            raise DataFault(f"{what}: {named(row)} is missing", "fill or drop such samples")
        raise DataFault(
            f"{what}: {named(row)} is {y[row]}",
            "classes are names or whole numbers; for numbers to predict: shoal.Fleet(..., regression=True), "
            "fedserver simulate --regression, or on a device data.regression: true",
        )
    return y.astype(np.int64)


def _of_objects(what: str, y: Array, named: Named) -> Array:
    """Python's own values, as data frames and lists have them, as an array of their kind."""
    values: list[Any] = y.tolist()
    for row, value in enumerate(values):
        if is_missing(value):
            raise DataFault(f"{what}: {named(row)} is missing", "fill or drop such samples")
    kinds = {_kind(value): row for row, value in reversed(list(enumerate(values)))}
    if len(kinds) > 1:
        (one, first), (other, second), *_ = sorted(kinds.items(), key=lambda item: item[1])
        raise DataFault(
            f"{what}: {named(first)} is {one}, and {named(second)} is {other}",
            "write all labels in one way, such as y.astype(str)",
        )
    if "other" in kinds:
        found = type(values[0]).__name__
        raise DataFault(f"{what}: the labels are of type {found}", "labels are text, booleans or numbers")
    return np.array(values)


def is_missing(value: object) -> bool:
    """Whether it stands for no value: None, NaN, and what pandas has for the same."""
    if isinstance(value, float | np.floating):
        return bool(value != value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _kind(value: object) -> str:
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool | np.bool_):
        return "a boolean"
    return "a number" if isinstance(value, int | float | np.number) else "other"


def names_of(labels: Mapping[str, Sequence[Array]]) -> tuple[str, ...] | None:
    """The names of the classes that all devices have together, in order; None where their labels are 0 to
    C-1 already.

    labels: of each device, as `read` gives them. Whole numbers are in the order of their values, and text in
    that of its letters. Raises DataFault where devices do not have the same kind of labels.
    """
    kinds: dict[str, str] = {}
    for device, arrays in labels.items():
        for array in arrays:
            kinds.setdefault(array.dtype.kind, device)
    if len(kinds) > 1:
        words = {"i": "numbers", "U": "text", "b": "booleans"}
        (one, first), (other, second), *_ = kinds.items()
        raise DataFault(
            f"the labels of {second} are {words[other]}, and those of {first} are {words[one]}",
            "write the classes in the same way on all devices",
        )
    kind = next(iter(kinds), "i")
    if kind == "b":
        return BOOLEANS
    values = np.unique(np.concatenate([np.unique(array) for arrays in labels.values() for array in arrays]))
    if kind == "U":
        found = [str(value) for value in values]
        if not are_numbers(found):
            return tuple(found)
        values = np.sort(np.array([int(name) for name in found]))
    return None if np.array_equal(values, np.arange(len(values))) else tuple(map(str, values.tolist()))


def placed(what: str, y: Array, names: Sequence[str] | None, named: Named = by_row) -> Array:
    """(n,) int64: the place in `names` of each label; None: labels are numbers already.

    y: as `read` gives it. Whole numbers and booleans that no name stands for are places themselves. Raises
    DataFault, which says what is near, for a label that has no place.
    """
    if names is None:
        return _whole(what, y, named, "classes are whole numbers from 0 here")
    place = {name: number for number, name in enumerate(names)}
    if y.dtype.kind != "U" and not any(_is_number(name) or name in BOOLEANS for name in names):
        place = {str(number): number for number in range(len(names))}
        y = y.astype(np.int64)
    values, where = np.unique(y, return_inverse=True)
    for value in values:
        if str(value) not in place:
            row = int((y == value).argmax())
            raise DataFault(
                f"{what}: {named(row)} is {str(value)!r}, which is not among the classes",
                _known(value, names),
            )
    numbers = np.array([place[str(value)] for value in values], np.int64)
    return numbers[where] if len(values) else np.empty(0, np.int64)


def numbers(what: str, y: Array, named: Named = by_row) -> Array:
    """Labels of one device, which are classes from 0 as they are: (n,) int64. Raises DataFault."""
    found = read(what, y, named)
    words = sorted({str(label) for label in found.tolist()}) if found.dtype.kind == "U" else []
    return _whole(what, found, named, to_list(words))


def to_list(words: Sequence[str]) -> str:
    """A hint for names of classes that a device must not number by itself."""
    rest = f", and {len(words) - WRITTEN} more" if len(words) > WRITTEN else ""
    listed = f"data.classes: [{', '.join(map(_as_setting, words[:WRITTEN]))}{rest}]"
    return f"list the names of all classes, in the same order on every device: {listed}"


def _whole(what: str, y: Array, named: Named, hint: str) -> Array:
    """Labels that are whole numbers from 0, as int64. hint: what to do about words."""
    if y.dtype.kind == "U":
        right = np.array([_is_number(str(label)) for label in y], bool)
        if not right.all():
            row = int(right.argmin())
            raise DataFault(f"{what}: {named(row)} is {str(y[row])!r}, and not a number", hint)
    found = y.astype(np.int64)
    if (wrong := (found < 0) | (found >= MAX_CLASS)).any():
        row = int(wrong.argmax())
        raise DataFault(f"{what}: {named(row)} is {found[row]}", "classes are whole numbers from 0")
    return found


def sentence(names: Sequence[str] | None) -> str:
    """What a reader of the numbers has to know; "" where the labels were numbers from 0.

    Example:
        >>> sentence(("1", "2", "3"))
        'classes 1 to 3 are numbered from 0'
        >>> sentence(("cat", "dog"))
        'classes cat, dog are numbered from 0'
        >>> sentence(("cat",))
        'class cat, the only one, is numbered 0'
    """
    if names is None:
        return ""
    if len(names) == 1:
        return f"class {names[0]}, the only one, is numbered 0"
    shown = listed(names)
    if len(names) > 1 and are_numbers(names):
        first, last = int(names[0]), int(names[-1])
        shown = f"{first} to {last}" if last - first == len(names) - 1 else shown
    return f"classes {shown} are numbered from 0"


def are_numbers(names: Iterable[str]) -> bool:
    """Whether the classes were whole numbers."""
    return all(map(_is_number, names))


def listed(names: Iterable[str]) -> str:
    """The first names."""
    found = list(names)
    more = len(found) - SHOWN
    return ", ".join(found[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _as_setting(name: str) -> str:
    return name if PLAIN.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _is_number(name: str) -> bool:
    """Whether a text is a whole number as it is usually written: "01" is a name."""
    digits = name.removeprefix("-")
    return len(name) < 16 and name.isascii() and digits.isdecimal() and str(int(name)) == name


def _known(value: object, names: Sequence[str]) -> str:
    hint = near(str(value), list(names))
    return hint if len(names) <= SHOWN or not hint.startswith("known: ") else f"known: {listed(names)}"
