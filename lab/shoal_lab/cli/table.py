"""`fedserver table`: a table of one of the papers, run in pieces and put beside what the paper prints."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from fedserver.cli.options import PATH
from shoal.core.errors import ConfigError, Refused
from shoal.shell.config import parsed
from shoal.shell.console import Console, Result, verb


@click.command(
    context_settings={"show_default": True},
    epilog="Example: fedserver table --paper flux --table 1 --dataset mnist --data-dir mnist --seeds 42 "
    "--methods flux,fedavg --columns 'px-*' --minutes 60",
)
@verb
@click.option("--paper", metavar="NAME", default="flux", help="flux, feroma, fedrc, fmcl or cornflqs.")
@click.option(
    "--table", "number", metavar="N", type=int, default=1, help="The number of the table in the paper."
)
@click.option(
    "--dataset",
    metavar="NAME",
    default="mnist",
    help="The data set, such as mnist or fashion-mnist; or the path of your own: npz, csv or parquet, or a "
    "folder or archive of images.",
)
@click.option(
    "--label", metavar="COLUMN", default="", help="The column of classes, of a csv or parquet file."
)
@click.option("--data-dir", metavar="DIR", type=PATH, help="The folder with the data set's files.")
@click.option(
    "--seeds", default="42", metavar="N,N", help="Random seeds; each cell runs once for each of them."
)
@click.option(
    "--methods",
    show_default=False,
    default="",
    metavar="A,B",
    help="Only these methods, by the paper's names.  [default: all]",
)
@click.option(
    "--columns",
    default="",
    show_default=False,
    metavar="A,B",
    help="Only these columns; patterns such as px-* work.  [default: all]",
)
@click.option(
    "--clients", metavar="N", type=click.IntRange(min=1), help="Number of devices, instead of the paper's."
)
@click.option(
    "--rounds", metavar="N", type=click.IntRange(min=1), help="Number of rounds, instead of the paper's."
)
@click.option(
    "--samples",
    metavar="N",
    type=click.IntRange(min=1),
    help="Number of training samples of each device, instead of the paper's.",
)
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter of all methods, instead of the paper's. Fewer samples need a higher learning rate.",
)
@click.option(
    "--out", type=PATH, metavar="DIR", help="Where the results are stored.  [default: runs/tables/NAME]"
)
@click.option(
    "--jobs", metavar="N", type=click.IntRange(min=1), default=1, help="Number of cells to run at a time."
)
@click.option(
    "--minutes",
    show_default=False,
    metavar="MINUTES",
    type=click.FloatRange(min=0.0),
    default=float("inf"),
    help="Start no new cell after this many minutes.",
)
@click.option("--device", metavar="NAME", default="auto", help="Where to compute: auto, cpu or cuda.")
@click.option(
    "--list",
    "listed",
    is_flag=True,
    help="List the methods and columns of the table without running anything.",
)
def table(
    console: Console,
    paper: str,
    number: int,
    dataset: str,
    label: str,
    data_dir: Path | None,
    seeds: str,
    methods: str,
    columns: str,
    clients: int | None,
    rounds: int | None,
    samples: int | None,
    changes: tuple[str, ...],
    out: Path | None,
    jobs: int,
    minutes: float,
    device: str,
    listed: bool,
) -> Result:
    """Reproduce a table of one of the papers, and print it beside the paper's figures.

    A table takes hours. The result of each cell is stored as soon as it is ready, so the same command
    continues where the last one stopped, and --minutes 0 shows the results so far. DIR holds cells/,
    table.json, small.json, table.md and, where matplotlib is installed, table.png.
    """
    from shoal_lab import tables
    from shoal_lab.experiment import Experiment
    from shoal_lab.tables import campaign, markdown, plot
    from shoal_lab.tables.summary import summarise
    from shoal_lab.tables.table import is_path

    chosen = tables.find(paper, number)
    if listed:
        rows, grid = [m.label for m in chosen.methods], [c.name for c in chosen.columns]
        text = f"{chosen.title}\nmethods: {', '.join(rows)}\ncolumns: {', '.join(grid)}"
        return Result({"methods": rows, "columns": grid}, text)
    base = Experiment(dataset=dataset, data_dir=data_dir, label=label, device=device, threads=1)
    short = Path(dataset).stem if is_path(dataset) else dataset
    wanted = {"clients": clients, "rounds": rounds, "samples": samples}
    scale: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    if changes:
        scale["changes"] = dict(map(parsed, changes))
    cells = chosen.cells(base, _numbers(seeds), _names(methods), _names(columns), scale)
    folder = out or Path("runs") / "tables" / "-".join([chosen.name, short, *_said(scale)]).replace(" ", "-")
    results = campaign.finished(cells, folder)
    due = [cell for cell in cells if cell.name not in results]
    console.say(f"{len(cells)} cells, {len(results)} of them done; results in {folder}")

    def show(cell: Any, result: Mapping[str, Any]) -> None:
        results[cell.name] = result
        left = len(cells) - len(results)
        console.say(f"{cell.name}: {_figures(chosen, cell, result)}, {_seconds(result):.0f} s; {left} left")

    failed = campaign.run_cells(due, folder, jobs=jobs, seconds=60.0 * minutes, on_result=show) if due else {}
    for name, reason in failed.items():
        console.say(f"{name}: failed: {reason}")
    everything = chosen.cells(base, _kept_seeds(folder, seeds), scale=scale)
    kept = campaign.finished(everything, folder)
    grids = summarise(chosen, dataset, everything, kept)
    data = {
        "table": chosen.name,
        "dataset": dataset,
        "scale": scale,
        "measures": grids,
        "cells": kept,
        "failed": failed,
    }
    rows = [f"| {name} | {_seconds(result):.0f} | {_bytes(result)} |" for name, result in kept.items()]
    about = ", ".join([dataset, *_said(scale)])
    text = markdown.page(chosen, about, grids, rows)
    _write(folder, data, text)
    plot.draw(chosen, about, grids, folder / "table.png")
    refusal = (
        Refused(f"{len(failed)} of {len(cells)} cells failed", "the reasons are listed above")
        if failed
        else None
    )
    return Result(data, markdown.page(chosen, about, grids, []), refusal)


def _said(scale: Mapping[str, Any]) -> list[str]:
    """What differs from the paper."""
    sizes = [f"{value} {name}" for name, value in scale.items() if name != "changes"]
    return sizes + [f"{name} {value}" for name, value in scale.get("changes", {}).items()]


def _write(folder: Path, data: Mapping[str, Any], text: str) -> None:
    from shoal.shell import disk
    from shoal_lab.tables import campaign

    disk.write(folder / "table.json", json.dumps(data, indent=1).encode())
    disk.write(folder / "small.json", json.dumps(campaign.kept_cells(folder)).encode())
    disk.write(folder / "table.md", text.encode())


def _kept_seeds(folder: Path, asked: str) -> list[int]:
    """All seeds that have a stored cell, so that a table that was run in parts is shown as a whole."""
    kept = {int(path.stem.rpartition("-")[2]) for path in (folder / "cells").glob("*--seed-*.json")}
    return sorted(kept | set(_numbers(asked)))


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds {text!r} is not a list of whole numbers", "write --seeds 42,43") from None


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _figures(table: Any, cell: Any, result: Mapping[str, Any]) -> str:
    from shoal_lab.tables.summary import at

    found = {name: at(result, table.measures[name]) for name in cell.column.measures}
    return ", ".join(f"{name} {value:.2f}" for name, value in found.items() if value is not None)


def _seconds(result: Mapping[str, Any]) -> float:
    return float(result["seconds"]["total"])


def _bytes(result: Mapping[str, Any]) -> str:
    return f"{result['bytes']['up']} | {result['bytes']['down']}"
