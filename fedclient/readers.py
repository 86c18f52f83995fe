"""Files into arrays. Nothing in a file is trusted or run; what is wrong is a DataFault with file and mend."""

import csv
import itertools
import math
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedcore.data import idx
from fedcore.errors import DataFault, near
from fedcore.types import Array

Arrays = tuple[Array, Array | None]
"""x, and y where there are labels."""

CSV_BLOCK = 1 << 14
"""Lines that are held as text at a time."""


def read_npz(path: Path, x: str = "x", y: str = "y") -> Arrays | None:
    """The arrays of these names; None when there is no x. Raises DataFault, or OSError as `open` does."""
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise DataFault(
                f"{path} is a single array, not an npz file", "save it with numpy.savez(path, x=...)"
            )
        with archive:
            if x not in archive.files:
                return None
            return archive[x], archive[y] if y in archive.files else None
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, KeyError, NotImplementedError) as error:
        if "allow_pickle" in str(error):
            problem = "is no npz file of plain arrays, and pickled objects are never opened"
            raise DataFault(f"{path} {problem}", "save arrays of numbers with numpy.savez") from None
        raise DataFault(f"{path} is not a whole npz file: {error}", "copy or save it again") from None
    except MemoryError:
        raise DataFault(f"{path} does not fit into the memory", "split the file") from None


def read_idx(path: Path, labels: Path | None) -> Arrays:
    """An idx file and the one of its labels, if any. Raises DataFault, or OSError as `open` does."""
    try:
        return idx.read(path), None if labels is None else idx.read(labels)
    except ValueError as error:
        raise DataFault(str(error)) from None


def read_csv(path: Path, label: str | None, labels: bool) -> Arrays:
    """The columns but `label` as x (n, columns) float64, and that one as y.

    labels: False lets the column of labels be missing. Raises DataFault, or OSError as `open` does.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file, strict=True)
            header = [name.strip() for name in next(rows, [])]
            _check_header(path, header, label if labels else None)
            table = np.concatenate([np.empty((0, len(header))), *_blocks(path, header, rows)])
    except UnicodeDecodeError:
        raise DataFault(f"{path} is not UTF-8 text", "save it as UTF-8") from None
    except csv.Error as error:
        raise DataFault(
            f"{path} is not a csv file: {error}", "separate by commas, quote by double quotes"
        ) from None
    if label not in header:
        return table, None
    column = header.index(label)
    return np.delete(table, column, axis=1), table[:, column]


def _check_header(path: Path, header: list[str], label: str | None) -> None:
    if not header:
        raise DataFault(f"{path} is empty", "it needs a line of column names, then numbers")
    for name in header:
        if header.count(name) > 1:
            raise DataFault(f"{path}: two columns are called {name!r}", "rename one")
    if label is not None and label not in header:
        mend = f"{near(label, header)}; without labels leave `data.label` out"
        raise DataFault(f"{path} has no column {label!r} for the classes", mend)


def _blocks(path: Path, header: list[str], rows: Iterator[list[str]]) -> Iterator[Array]:
    """The lines as numbers, a block at a time."""
    line = 2
    while block := list(itertools.islice(rows, CSV_BLOCK)):
        lines = [row for row in block if row]  # without empty ones, as at the end of many files
        try:
            numbers = np.array(lines or np.empty((0, len(header))), dtype=np.float64)
        except ValueError:
            raise _bad_line(path, header, block, line) from None
        if numbers.shape[1:] != (len(header),) or not np.isfinite(numbers).all():
            raise _bad_line(path, header, block, line)
        yield numbers
        line += len(block)


def _bad_line(path: Path, header: list[str], block: list[list[str]], line: int) -> DataFault:
    """The first thing that is wrong in a block whose first line is number `line`."""
    for number, row in enumerate(block, line):
        if row and len(row) != len(header):
            problem = f"{len(row)} values where there are {len(header)} columns"
            return DataFault(f"{path}, line {number}: {problem}", "mend that line")
        for name, cell in zip(header, row, strict=False):
            if not cell.strip():
                return DataFault(
                    f"{path}, line {number}, column {name!r} is empty", "fill it, or drop the line"
                )
            if not _is_number(cell):
                mend = "use finite numbers; classes are whole numbers from 0, the same on all devices"
                return DataFault(
                    f"{path}, line {number}, column {name!r}: {cell[:40]!r} is not a number", mend
                )
    return DataFault(
        f"{path}: lines {line} to {line + len(block) - 1} are not all numbers", "use numbers only"
    )


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell)) and "_" not in cell
    except ValueError:
        return False
