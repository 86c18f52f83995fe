"""What the cells of a table say together: means over seeds and over columns, beside the paper's."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal_lab.tables.campaign import Results
from shoal_lab.tables.table import MEAN, Cell, Figure, Table


def summarise(table: Table, dataset: str, cells: Sequence[Cell], results: Results) -> dict[str, Any]:
    """Measure by measure, method by method: columns, and their mean. For JSON, Markdown and plots.

    A method's mean, and the paper's beside it, are over the columns in which the method was run here.
    """
    published = table.published(dataset)
    grids: dict[str, dict[str, Any]] = {}
    for measure, place in table.measures.items():
        rows: dict[str, Any] = {}
        for method in table.methods:
            columns: dict[str, Any] = {}
            for column in table.columns_of(dataset):
                if measure not in column.measures:
                    continue
                own = [cell for cell in cells if cell.method == method and cell.column == column]
                values = _by_seed(own, results, place)
                entry = _entry(values, published.get((method.label, column.name, measure)))
                if entry is not None:
                    columns[column.name] = entry
            if columns:
                here = table.columns_of(dataset)
                whole = sum(measure in column.measures for column in here) == len(columns)
                printed = published.get((method.label, MEAN, measure)) if whole else None
                rows[method.label] = {"columns": columns, "mean": _mean(columns, printed)}
        grids[measure] = rows
    return grids


def _by_seed(cells: Sequence[Cell], results: Results, place: Sequence[str]) -> dict[int, float]:
    """The mean over a column's parts, for each seed at which all of them are there."""
    found: dict[int, list[float | None]] = {}
    for cell in cells:
        result = results.get(cell.name)
        found.setdefault(cell.experiment.seed, []).append(None if result is None else at(result, place))
    whole = {seed: [value for value in values if value is not None] for seed, values in found.items()}
    return {
        seed: float(np.mean(values)) for seed, values in whole.items() if values and None not in found[seed]
    }


def _entry(values: Mapping[int, float], paper: Figure | None) -> dict[str, Any] | None:
    found = list(values.values())
    if not found:
        return None
    return {
        "mean": float(np.mean(found)),
        "spread": float(np.std(found, ddof=1)) if len(found) > 1 else None,
        "seeds": sorted(values),
        "paper": None if paper is None else paper.mean,
        "paper_spread": None if paper is None or np.isnan(paper.spread) else paper.spread,
    }


def _mean(columns: Mapping[str, Mapping[str, Any]], printed: Figure | None) -> dict[str, Any]:
    """printed: the paper's own mean, where it prints no columns and all of them were run."""
    papers = [entry["paper"] for entry in columns.values() if entry["paper"] is not None]
    if printed is not None and not papers:
        papers = [printed.mean] * len(columns)
    return {
        "columns": len(columns),
        "mean": float(np.mean([entry["mean"] for entry in columns.values()])),
        "paper": float(np.mean(papers)) if len(papers) == len(columns) else None,
    }


def at(result: Mapping[str, Any], place: Sequence[str]) -> float | None:
    value: Any = result
    for name in place:
        value = value[name]
    return None if value is None else float(value)
