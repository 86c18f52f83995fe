"""Runs the cells of a table, each in a process that may end at any time: what is done is on the disk.

OUT/cells/METHOD--COLUMN--seed-N.json    one finished experiment, and the settings that it was run with
OUT/small.json                           all of them in few bytes; docs/measured/ has such files
"""

import json
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal import __version__
from shoal.core.errors import ShoalError, Unavailable
from shoal.shell import disk
from shoal_lab.experiment import Experiment, run
from shoal_lab.tables.table import Cell

Results = dict[str, Mapping[str, Any]]
"""What an experiment found, by the cell's name."""


def finished(cells: Sequence[Cell], folder: Path) -> Results:
    """What is on the disk of these cells. A result of other settings, or of another version, is none."""
    results: Results = {}
    for cell in cells:
        try:
            kept = json.loads(_path(folder, cell).read_bytes())
        except (FileNotFoundError, ValueError):
            continue
        if kept.get("settings") == _settings(cell.experiment):
            results[cell.name] = kept["result"]
    return results


def run_cells(
    cells: Sequence[Cell],
    folder: Path,
    *,
    jobs: int,
    seconds: float,
    on_result: Callable[[Cell, Mapping[str, Any]], None],
) -> dict[str, str]:
    """Run `cells`, `jobs` at a time; none is begun after `seconds`. `on_result` is given each result.

    Returns why cells failed, by name: a refused experiment ends only itself. Raises StorageFault, and
    Unavailable when a process dies.
    """
    failed: dict[str, str] = {}
    waiting, began = list(reversed(cells)), time.monotonic()
    # Not a fork: PyTorch's threads do not survive one.
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        running: dict[Future[Mapping[str, Any]], Cell] = {}
        while True:
            while waiting and len(running) < jobs and time.monotonic() - began < seconds:
                cell = waiting.pop()
                running[pool.submit(_run, cell.experiment)] = cell
            if not running:
                return failed
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                cell = running.pop(future)
                outcome = _outcome(future, cell)
                if "failed" in outcome:
                    failed[cell.name] = outcome["failed"]
                else:
                    kept = {"settings": _settings(cell.experiment), "result": outcome}
                    disk.write(_path(folder, cell), json.dumps(kept, indent=1).encode())
                    on_result(cell, outcome)


def small(kept: Mapping[str, Any]) -> dict[str, Any]:
    """A stored cell in few bytes, for others to compare theirs with: its settings and its figures, without
    the rounds and the newcomers. Accuracies of devices are rounded to 4 digits."""
    settings, result = kept["settings"], kept["result"]
    accuracy = result["accuracy"]
    return {
        "settings": settings,
        "figures": {name: value for name, value in accuracy.items() if isinstance(value, int | float)},
        "known": [_rounded(row["known"]) for row in accuracy["per_device"]],
        "test": [_rounded(row["test"]) for row in accuracy["per_device"]],
        **{name: result[name] for name in ("clusters", "ari", "assignments", "seconds", "bytes")},
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def kept_cells(folder: Path) -> dict[str, dict[str, Any]]:
    """All stored cells of a folder, each as `small` has it, by name. Half a file is none."""
    found = {}
    for path in sorted((folder / "cells").glob("*.json")):
        with suppress(ValueError, KeyError):
            found[path.stem] = small(json.loads(path.read_bytes()))
    return found


def _outcome(future: Future[Mapping[str, Any]], cell: Cell) -> Mapping[str, Any]:
    try:
        return future.result()
    except BrokenExecutor as error:
        raise Unavailable(f"the process of {cell.name} died", "is memory short? try --jobs 1") from error


def _run(experiment: Experiment) -> Mapping[str, Any]:
    try:
        return run(experiment)
    except ShoalError as error:
        return {"failed": str(error)}


def _settings(experiment: Experiment) -> dict[str, Any]:
    """What a result depends on, as JSON has it: settings that are not the defaults, so that results stay
    valid when a later version adds a setting. Where the data set's files are does not matter."""
    default = Experiment()
    chosen = {
        name: value
        for name, value in vars(experiment).items()
        if name != "data_dir" and value != getattr(default, name)
    }
    found: dict[str, Any] = json.loads(json.dumps({**chosen, "version": __version__}, default=dict))
    return found


def _path(folder: Path, cell: Cell) -> Path:
    return folder / "cells" / f"{cell.name}.json"
