"""Tables of numbers: csv, and parquet where pyarrow is installed."""

import csv
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.errors import DataFault, near
from shoal.core.types import Array
from shoal.shell.readers.arrays import Arrays

CSV_BLOCK = 1 << 14
"""Lines that are held as text at a time."""
MAX_NAMES = 8
"""Columns that an error lists."""


def read_csv(
    path: Path,
    label: str | None,
    labels: bool,
    columns: Sequence[str] = (),
    ignore: Sequence[str] = (),
    words: bool = False,
) -> Arrays:
    """The columns that are called for as x (n, columns) float64, and `label` as y. The others may hold words.

    labels: False lets the column of labels be missing. columns: what x is, in this order; by default all
    but `label` and `ignore`, as they stand. words: whether labels may be words too; y is then text where one
    of them is no number, or booleans in a parquet file. Raises DataFault, or OSError as `open` does.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file, strict=True)
            header = [name.strip() for name in next(rows, [])]
            _check_names(path, header)
            taken, known = _chosen(path, header, label, labels, columns, ignore)
            width = len(taken)
            numeric, text = (taken, label) if words and known else ([*taken, *known], None)
            blocks = list(_blocks(path, header, numeric, text, rows, bool(known)))
    except UnicodeDecodeError:
        raise DataFault(f"{path} is not UTF-8 text", "save it as UTF-8") from None
    except csv.Error as error:
        raise DataFault(
            f"{path} is not a csv file: {error}", "separate by commas, quote by double quotes"
        ) from None
    table = np.concatenate([np.empty((0, len(numeric))), *(numbers for numbers, _ in blocks)])
    if text is None:
        return table[:, :width], table[:, width] if known else None
    found = np.concatenate([np.empty(0, "U1"), *(cells for _, cells in blocks)])
    return table, found.astype(np.float64) if all(map(_is_number, found.tolist())) else found


def columns_of(path: Path, kind: str) -> list[str]:
    """The names of the columns of a table, in their order. kind: csv or parquet. Raises OSError, ValueError
    and csv.Error where it cannot be read."""
    if kind == "parquet":
        from pyarrow.parquet import read_schema

        return list(read_schema(path).names)
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        return [name.strip() for name in next(csv.reader(file), [])]


def line_of(path: Path, row: int) -> int:
    """The line, from 1, in which a row, from 0, of `read_csv` ends. Only among lines, empty ones count."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file)
        next(lines)
        next(itertools.islice(filter(None, lines), row, None))
        return lines.line_num


def _check_names(path: Path, header: list[str]) -> None:
    """Numbers from 0 on may be names; other numbers are samples, of which the first would be lost."""
    counted = [str(number) for number in range(len(header))]
    if header and header != counted and all(map(_is_number, header)):
        raise DataFault(
            f"{path}: the first row must name the columns, and it is {','.join(header[:MAX_NAMES])[:80]}",
            "add a first row of names, such as length,width,class",
        )


def _chosen(
    path: Path,
    header: list[str],
    label: str | None,
    labels: bool,
    columns: Sequence[str],
    ignore: Sequence[str],
) -> tuple[list[str], list[str]]:
    """The columns of x, and that of the labels, if it is there; as `read_csv` is asked for them."""
    if not header:
        raise DataFault(f"{path} is empty", "it needs a line of column names, then numbers")
    if len(header) == 1 and ";" in header[0]:
        hint = "separate by commas, and write numbers with a point: 1.5"
        raise DataFault(f"{path} is separated by semicolons", hint)
    for name in header:
        if header.count(name) > 1:
            raise DataFault(f"{path}: two columns are called {name!r}", "rename one")
    if labels and label is not None and label not in header:
        hint = f"a device without labels leaves `data.label` out; {_known(label, header)}"
        raise DataFault(f"{path} has no column {label!r} for the classes", hint)
    for setting, names in {"columns": columns, "ignore": ignore}.items():
        for name in names:
            if name not in header:
                problem = f"{path} has no column {name!r}, which `data.{setting}` names"
                raise DataFault(problem, _known(name, header))
    left_out = {label, *ignore}
    taken = list(columns) or [name for name in header if name not in left_out]
    return taken, [label] if label in header else []


def _known(name: str, header: list[str]) -> str:
    """The column that is probably meant, or else the first columns that there are."""
    hint = near(name, header)
    if len(header) <= MAX_NAMES or not hint.startswith("known: "):
        return hint
    return f"known: {', '.join(header[:MAX_NAMES])} and {len(header) - MAX_NAMES} more"


def _blocks(
    path: Path,
    header: list[str],
    taken: list[str],
    text: str | None,
    rows: Iterator[list[str]],
    labeled: bool,
) -> Iterator[tuple[Array, Array]]:
    """The columns `taken` as numbers, in that order, and the column `text` as it is, a block of lines at a
    time. labeled: whether one of them has the labels."""
    line, order = 2, [header.index(name) for name in taken]
    place = None if text is None else header.index(text)
    while block := list(itertools.islice(rows, CSV_BLOCK)):
        if any(len(row) not in (0, len(header)) for row in block):
            raise _bad_line(path, header, taken, block, line, labeled)
        # Without empty lines, as at the end of many files.
        lines = [[row[column] for column in order] for row in block if row]
        try:
            numbers = np.array(lines, dtype=np.float64).reshape(len(lines), len(taken))
        except ValueError:
            raise _bad_line(path, header, taken, block, line, labeled) from None
        cells = [] if place is None else [row[place].strip() for row in block if row]
        if not np.isfinite(numbers).all() or not all(cells):
            raise _bad_line(path, header, taken, block, line, labeled, text)
        yield numbers, np.array(cells, np.str_)
        line += len(block)


def _bad_line(
    path: Path,
    header: list[str],
    taken: list[str],
    block: list[list[str]],
    line: int,
    labeled: bool,
    text: str | None = None,
) -> DataFault:
    """The first thing that is wrong in a block whose first line is number `line`."""
    for number, row in enumerate(block, line):
        if row and len(row) != len(header):
            problem = f"{len(row)} values where there are {len(header)} columns"
            return DataFault(f"{path}, line {number}: {problem}", "fix that line")
        for name, cell in zip(header, row, strict=False):
            if name not in (*taken, text):
                continue
            if not cell.strip():
                return DataFault(
                    f"{path}, line {number}, column {name!r} is empty", "fill it, or drop the line"
                )
            if name != text and not _is_number(cell):
                hint = "use finite numbers, or leave the column out: data.ignore"
                if len(taken) == len(header) and not labeled:  # no one has said which column has the classes
                    hint += f"; if it has the classes: data.label: {name}"
                return DataFault(
                    f"{path}, line {number}, column {name!r}: {cell[:40]!r} is not a number", hint
                )
    return DataFault(
        f"{path}: lines {line} to {line + len(block) - 1} are not all numbers", "use numbers only"
    )


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell)) and "_" not in cell
    except ValueError:
        return False


def read_parquet(
    path: Path,
    label: str | None,
    labels: bool,
    columns: Sequence[str] = (),
    ignore: Sequence[str] = (),
    words: bool = False,
) -> Arrays:
    """The same of a parquet file. A column may hold lists of numbers, all of one length, such as embeddings:
    its numbers then stand in x side by side.

    Raises DataFault, for a missing pyarrow too, or OSError as `open` does.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DataFault(
            f"{path} is a parquet file, and pyarrow is not installed", "pip install pyarrow"
        ) from None
    with path.open("rb") as file:
        try:
            source = pyarrow.parquet.ParquetFile(file)
            header = list(source.schema_arrow.names)
            taken, known = _chosen(path, header, label, labels, columns, ignore)
            table = source.read(columns=[*taken, *known])
        except (pyarrow.ArrowException, UnicodeDecodeError) as error:
            raise DataFault(f"{path} is not a whole parquet file: {error}", "copy or save it again") from None
    found = [_parquet_column(path, name, table.column(name)) for name in taken]
    if not found:
        raise DataFault(f"{path} has no column of samples", "name some with data.columns")
    x = np.concatenate(found, axis=1)
    if not known or label is None:
        return x, None
    column = table.column(label)
    if words and (text := _words(column, pyarrow.types)) is not None:
        return x, text
    return x, _parquet_column(path, label, column)[:, 0]


def _words(column: Any, types: Any) -> Array | None:
    """A column of text, of such categories or of booleans; None for another, or one with missing values."""
    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if column.null_count:
        return None
    if types.is_string(kind) or types.is_large_string(kind):
        return np.array(column.to_pylist(), np.str_)
    return np.array(column.to_pylist(), np.bool_) if types.is_boolean(kind) else None


def _parquet_column(path: Path, name: str, column: Any) -> Array:
    """(n, 1), or (n, m) of a column of lists of m numbers."""
    if column.null_count:
        raise DataFault(
            f"{path}, column {name!r}: {column.null_count} values are missing", "fill or drop them"
        )
    if hasattr(column.type, "value_type") and hasattr(column.type, "index_type"):  # categories
        column = column.cast(column.type.value_type)
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind in "mM":  # numpy would count its days, or its nanoseconds
        raise DataFault(
            f"{path}, column {name!r} has times",
            "leave it out with data.ignore, or make a number of it, such as days",
        )
    if not len(values):
        return np.empty((0, 1))
    try:
        rows = np.stack(values) if values.dtype == object else values
        numbers: Array = np.asarray(rows, dtype=np.float64).reshape(len(values), -1)
    except (ValueError, TypeError):
        raise DataFault(
            f"{path}, column {name!r} does not hold numbers, or lists of them of one length",
            "leave it out with data.ignore",
        ) from None
    return numbers
