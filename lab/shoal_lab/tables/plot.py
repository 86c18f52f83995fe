"""A table as a picture: a panel for each measure, a line for each method, the paper's dashed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal_lab.tables.table import Table


def draw(table: Table, about: str, grids: Mapping[str, Mapping[str, Any]], path: Path) -> bool:
    """Write the picture; False where matplotlib is not installed or there is nothing to draw."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    drawn = {measure: rows for measure, rows in grids.items() if rows}
    if not drawn:
        return False
    figure, axes = plt.subplots(len(drawn), 1, figsize=(11, 4 * len(drawn)), squeeze=False)
    for axis, (measure, rows) in zip(axes[:, 0], drawn.items(), strict=True):
        names = [c.name for c in table.columns if any(c.name in row["columns"] for row in rows.values())]
        for method, row in rows.items():
            points = [row["columns"].get(name) for name in names]
            (line,) = axis.plot(names, [_or_nan(point, "mean") for point in points], marker="o", label=method)
            axis.plot(names, [_or_nan(point, "paper") for point in points], "--", color=line.get_color())
        axis.set_ylabel(measure)
        axis.tick_params(axis="x", labelrotation=60)
        axis.grid(visible=True, alpha=0.3)
        axis.legend(fontsize="small")
    axes[0, 0].set_title(f"{table.title}; {about}; dashed: as published")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True


def _or_nan(point: Mapping[str, Any] | None, name: str) -> float:
    return float("nan") if point is None or point[name] is None else float(point[name])
