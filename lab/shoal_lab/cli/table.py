"""`fedserver table`: a table of one of the papers, run in pieces and put beside what the paper prints."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from fedserver.cli.options import PATH
from shoal.core.errors import ConfigError, Refused, near
from shoal.shell.config import parsed
from shoal.shell.console import Console, Result, verb

ALL = "all"


@click.command(
    context_settings={"show_default": True},
    epilog="Example: fedserver table --paper flux --table 1 --dataset mnist --data-dir mnist --seeds 42 "
    "--methods flux,fedavg --columns 'px-*' --minutes 60",
)
@verb
@click.pass_obj
@click.option(
    "--paper",
    metavar="NAME",
    show_default=False,
    help="flux, feroma, fedrc, fmcl or cornflqs; or all: of every table that has the data set, what tells "
    "most first.  [default: flux]",
)
@click.option(
    "--table",
    "number",
    metavar="N",
    type=int,
    show_default=False,
    help="The number of the table in the paper.  [default: 1]",
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
    "--out",
    type=PATH,
    metavar="DIR",
    default=Path("runs/tables"),
    help="Where the results of all tables are stored: an experiment that several have is run once.",
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
    help="List all tables and what is stored of them; with --table, its methods and columns. Runs nothing.",
)
def table(
    console: Console,
    paper: str | None,
    number: int | None,
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
    out: Path,
    jobs: int,
    minutes: float,
    device: str,
    listed: bool,
) -> Result:
    """Reproduce a table of one of the papers, and print it beside the paper's figures.

    A table takes hours. The result of each cell is stored as soon as it is ready, so the same command
    continues where the last one stopped, and --minutes 0 shows the results so far. DIR holds cells/, and for
    each table a folder with table.json, small.json, table.md and, where matplotlib is installed, table.png.
    With --paper all and --minutes 480, a night is spent on the cells of all tables that tell most.
    """
    from shoal_lab import tables
    from shoal_lab.experiment import Experiment
    from shoal_lab.tables import campaign, markdown, plot
    from shoal_lab.tables.summary import summarise
    from shoal_lab.tables.table import is_path

    if listed and number is None:
        return _every_table(None if paper == ALL else paper, out, device)
    if paper == ALL:
        if number is not None or methods or columns or clients or rounds or samples or changes:
            raise ConfigError("--paper all takes the tables as they are", "name one paper to choose in it")
        base = Experiment(dataset=dataset, data_dir=data_dir, label=label, device=device, threads=1)
        return _what_tells_most(console, base, _numbers(seeds), out, jobs, minutes)
    chosen = tables.find(paper or "flux", number or 1)
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
    folder = out / "-".join([chosen.name, short, *_said(scale)]).replace(" ", "-")
    results = campaign.finished(cells, out)
    due = [cell for cell in cells if cell.name not in results]
    console.say(f"{len(cells)} cells, {len(results)} of them done; results in {folder}")

    def show(cell: Any, result: Mapping[str, Any]) -> None:
        results[cell.name] = result
        left = len(cells) - len(results)
        console.say(f"{cell.name}: {_figures(chosen, cell, result)}, {_seconds(result):.0f} s; {left} left")

    failed = campaign.run_cells(due, out, jobs=jobs, seconds=60.0 * minutes, on_result=show) if due else {}
    for name, reason in failed.items():
        console.say(f"{name}: failed: {reason}")
    # A table that was run in parts is shown as a whole.
    everything = chosen.cells(base, sorted({*campaign.seeds(out), *_numbers(seeds)}), scale=scale)
    kept = campaign.finished(everything, out)
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
    _write(folder, data, campaign.kept_cells(everything, out), text)
    plot.draw(chosen, about, grids, folder / "table.png")
    refusal = (
        Refused(f"{len(failed)} of {len(cells)} cells failed", "the reasons are listed above")
        if failed
        else None
    )
    return Result(data, markdown.page(chosen, about, grids, []), refusal)


def _what_tells_most(
    console: Console, base: Any, seeds: list[int], out: Path, jobs: int, minutes: float
) -> Result:
    """Run cells of all tables, and show what is stored of each."""
    from shoal_lab import tables
    from shoal_lab.tables import campaign, worth

    def path(cell: Any) -> Path:
        return campaign.path_of(out, cell)

    cells = worth.cells_of([*tables.TABLES.values()], base, seeds)
    if not cells:
        known = sorted({name for each in tables.TABLES.values() for name in each.datasets})
        raise ConfigError(f"no table has the data set {base.dataset!r}", near(base.dataset, known))
    due = worth.in_order(cells, path, lambda cell: path(cell).exists())
    every, left = {path(cell) for _, cell in cells}, {*map(path, due)}
    kept = campaign.finished([cell for _, cell in cells], out)
    ran = {path(cell): _seconds(kept[cell.name]) for _, cell in cells if cell.name in kept}
    console.say(
        f"{len(cells)} cells are {len(every)} experiments, {len(left)} of them to be run; the others took "
        f"{sum(ran.values()) / 3600:.1f} hours"
    )

    def show(cell: Any, result: Mapping[str, Any]) -> None:
        console.say(f"{cell.name}: {_seconds(result):.0f} s")

    failed = campaign.run_cells(due, out, jobs=jobs, seconds=60.0 * minutes, on_result=show) if due else {}
    for name, reason in failed.items():
        console.say(f"{name}: failed: {reason}")
    return replace(
        _every_table(None, out, base.device),
        error=Refused(f"{len(failed)} cells failed", "the reasons are listed above") if failed else None,
    )


def _said(scale: Mapping[str, Any]) -> list[str]:
    """What differs from the paper."""
    sizes = [f"{value} {name}" for name, value in scale.items() if name != "changes"]
    return sizes + [f"{name} {value}" for name, value in scale.get("changes", {}).items()]


def _write(folder: Path, data: Mapping[str, Any], small: Mapping[str, Any], text: str) -> None:
    from shoal.shell import disk

    disk.write(folder / "table.json", json.dumps(data, indent=1).encode())
    disk.write(folder / "small.json", json.dumps(small).encode())
    disk.write(folder / "table.md", text.encode())


def _every_table(paper: str | None, out: Path, device: str) -> Result:
    """All tables of the papers, or of one: what is stored of each at the paper's size, computed on `device`,
    what can be run, and what cannot and why."""
    from shoal_lab import tables
    from shoal_lab.experiment import Experiment
    from shoal_lab.tables import campaign

    seeds = campaign.seeds(out) or [42]
    rows: list[dict[str, Any]] = []
    for (name, number), each in tables.TABLES.items():
        parts = [
            each.cells(Experiment(dataset=data, device=device, threads=1), seeds) for data in each.datasets
        ]
        cells = sum(map(len, parts)) // len(seeds)
        done = sum(campaign.stored(part, out) for part in parts)
        state = f"{done} stored of {cells} a seed" if done else f"can be run, {cells} a seed"
        title = each.title.partition(": ")[2] or each.title
        rows.append(
            {"paper": name, "table": number, "cells": cells, "stored": done, "about": f"{state}: {title}"}
        )
    for (name, number), why in tables.ELSEWHERE.items():
        rows.append({"paper": name, "table": number, "cells": 0, "stored": 0, "about": f"not here: {why}"})
    papers = sorted({row["paper"] for row in rows})
    if paper not in (None, *papers):
        raise ConfigError(f"there is no paper {paper!r} here", near(paper, papers))
    rows = [row for row in rows if paper in (None, row["paper"])]
    rows.sort(key=lambda row: (row["paper"], row["table"]))
    lines = [f"{row['paper']:<10}{row['table']:>2}  {row['about']}" for row in rows]
    return Result({"tables": rows}, "\n".join(lines))


def _numbers(text: str) -> list[int]:
    try:
        return list(dict.fromkeys(int(part) for part in text.split(",")))
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
