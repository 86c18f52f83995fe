"""What `fedserver simulate` shows of its results: text for people, and a table of all seeds."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from shoal.shell import disk


def experiment_text(found: dict[str, Any]) -> str:
    """The result of an experiment, for people."""
    accuracy = found["accuracy"]
    rows = [f"{'device':<12}{'truth':>6}{'cluster':>10}{'known':>8}{'placed':>10}{'test':>8}"]
    for row in accuracy["per_device"]:
        test = "-" if row["test"] is None else f"{100 * row['test']:.1f}"
        rows.append(
            f"{row['device']:<12}{row['concept']:>6}{row['cluster']:>10}{100 * row['known']:>8.1f}"
            f"{row['placed'] or '-':>10}{test:>8}"
        )
    test = "-" if accuracy["test"] is None else f"{accuracy['test']:.2f}"
    own, newcomers, tuned = (
        "" if accuracy[name] is None else f", {name} {accuracy[name]:.2f} %"
        for name in ("own", "newcomers", "tuned")
    )
    formed = f", formed in round {found['clustering_round']}" if found["clustering_round"] else ""
    level = f" level {found['level']}" if found["level"] else ""
    drifts = f", {found['drifts']} drifts ({found['mode']})" if found["drifts"] else ""
    return "\n".join(
        [
            *rows,
            "",
            f"{found['algorithm']} ({found['preset']}) on {found['dataset']}, "
            f"{found['shift']}{level}{drifts}, seed {found['seed']}",
            f"known {accuracy['known']:.2f} %{tuned}, test {test} %{own}{newcomers}",
            f"known of the worst device {accuracy['worst']:.2f} %, deviation over devices "
            f"{accuracy['deviation']:.2f}",
            *([f"{accuracy['refused']} devices were refused a model"] if accuracy["refused"] else []),
            f"{found['clusters']} clusters{formed}, ARI against the truth {found['ari']:.2f}",
            f"{found['trained']['training']} rounds of training, {found['trained']['clustered']} of them on "
            "more than one model",
            *([f"privacy of the descriptors: {found['privacy']}"] if found["privacy"] else []),
            f"{found['seconds']['total']:.0f} s, {found['seconds']['training']:.0f} s of them training",
        ]
    )


def files_text(found: dict[str, Any]) -> str:
    """The result of a run on files, for people."""
    width = max(len(row["device"]) for row in found["devices"]) + 2
    rows = [f"{'device':<{width}}{'cluster':>10}{'accuracy':>10}{'samples':>9}"]
    rows += [
        f"{row['device']:<{width}}{row['cluster']:>10}{100 * row['accuracy']:>10.1f}{row['samples']:>9}"
        for row in found["devices"]
    ]
    seconds = found["seconds"]
    end = f"{seconds['total']:.0f} s, {seconds['training']:.0f} s of them training"
    if (tuned := found["accuracy"].get("tuned")) is not None:
        end = f"mean accuracy of models that their devices fine-tuned {100 * tuned:.1f} %\n{end}"
    return "\n".join([*rows, "", found["summary"], end])


def spreads(found: Mapping[int, Mapping[str, Any]]) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation over the seeds of each figure, in percent."""
    figures: dict[str, list[float]] = {}
    for result in found.values():
        for name, value in result["accuracy"].items():
            if isinstance(value, float):
                percent = value if "known" in result["accuracy"] else 100.0 * value
                figures.setdefault(name, []).append(percent)
    return {name: (fmean(own), pstdev(own)) for name, own in figures.items() if len(own) == len(found)}


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
