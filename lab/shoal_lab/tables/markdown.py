"""A table for people: one grid for each measure, ours beside the paper's."""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal_lab.tables.table import Table


def page(table: Table, about: str, grids: Mapping[str, Mapping[str, Any]], cells: Sequence[str]) -> str:
    """The whole page. cells: a line for each cell that was run, such as its seed, time and bytes."""
    lines = [f"# {table.title}", "", f"Setting: {about}. Ours, and the paper's in brackets.", ""]
    if table.note:
        lines += [table.note, ""]
    for measure, rows in grids.items():
        if rows:
            lines += [f"## {measure}", "", *_grid(table, measure, rows), ""]
    shown = {method for rows in grids.values() for method in rows}
    notes = [f"- {each.label}: {each.note}" for each in table.methods if each.note and each.label in shown]
    if notes:
        lines += ["## Where a row differs from the paper", "", *notes, ""]
    if cells:
        lines += [
            "## Cells",
            "",
            "| cell | seconds | bytes up | bytes down |",
            "|---|---|---|---|",
            *cells,
            "",
        ]
    return "\n".join(lines)


def _grid(table: Table, measure: str, rows: Mapping[str, Any]) -> list[str]:
    run = {name for row in rows.values() for name in row["columns"]}
    names = [column.name for column in table.columns if column.name in run and measure in column.measures]
    lines = [f"| method | {' | '.join(names)} | mean |", "|---" * (len(names) + 2) + "|"]
    for method, row in rows.items():
        texts = [_entry(row["columns"].get(name)) for name in names]
        mean = row["mean"]
        of = f" of {mean['columns']}" if mean["columns"] < len(names) else ""
        lines.append(f"| {method} | {' | '.join(texts)} | {_value(mean['mean'], mean['paper'])}{of} |")
    return lines


def _entry(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return ""
    return _value(entry["mean"], entry["paper"], entry["spread"])


def _value(mean: float, paper: float | None, spread: float | None = None) -> str:
    digits = 2 if abs(mean) <= 1.0 else 1
    found = f"{mean:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")
    return found + ("" if paper is None else f" ({paper:.{digits}f})")
