"""What `fedserver simulate` shows of its results: text for people, and a table of all seeds."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from shoal.core.texts import measure
from shoal.shell import disk


def files_text(found: dict[str, Any]) -> str:
    """The result of a run on files, for people."""
    if found["statistics"]:
        return str(found["summary"])
    width = max(len(row["device"]) for row in found["devices"]) + 2
    numbers = bool(found["verdict"]) and found["verdict"]["numbers"]
    what = "explained" if numbers else "accuracy"
    rows = [f"{'device':<{width}}{'cluster':>10}{what:>10}{'samples':>9}"]
    rows += [
        f"{row['device']:<{width}}{row['cluster']:>10}{100 * row['accuracy']:>10.1f}{row['samples']:>9}"
        for row in found["devices"]
    ]
    seconds = found["seconds"]
    end = f"{seconds['total']:.0f} s, {seconds['training']:.0f} s of them training"
    if (tuned := found["accuracy"].get("tuned")) is not None:
        end = f"mean {measure(numbers)} of models that their devices fine-tuned {100 * tuned:.1f} %\n{end}"
    said = [found["verdict"]["text"], ""] if found["verdict"] else []
    return "\n".join([*said, *rows, "", found["summary"], *found["remarks"], end])


def spreads(found: Mapping[int, Mapping[str, Any]]) -> dict[str, tuple[float, float | None]]:
    """Mean and sample standard deviation over the seeds of each figure, in percent; one seed has none."""
    figures: dict[str, list[float]] = {}
    for result in found.values():
        for name, value in result["accuracy"].items():
            if isinstance(value, float):
                percent = value if "known" in result["accuracy"] else 100.0 * value
                figures.setdefault(name, []).append(percent)
    return {
        name: (fmean(own), stdev(own) if len(own) > 1 else None)
        for name, own in figures.items()
        if len(own) == len(found)
    }


def write_rows(path: Path, found: Mapping[int, Mapping[str, Any]]) -> None:
    """Write a CSV file with one row for each device and seed. Raises StorageFault."""
    rows: Sequence[Mapping[str, Any]] = [
        {"seed": seed, **row}
        for seed, result in found.items()
        for row in (result.get("devices") or result["accuracy"]["per_device"])
    ]
    file = io.StringIO(newline="")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(file, columns, restval="")
    writer.writeheader()
    writer.writerows(rows)
    disk.write(path, file.getvalue().encode())
