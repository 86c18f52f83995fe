"""Runs the cells of tables, each in a process that may end at any time: what is done is on the disk.

Cells are kept by what they depend on, so an experiment that several tables and rows have is run once:

OUT/cells/seed-N-DIGEST.json    one finished experiment, and the settings that it was run with
OUT/TABLE/small.json            those of a table in few bytes; docs/measured/ has such files
"""

import gc
import hashlib
import json
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from shoal import __version__
from shoal.core.device_kit.learner import OutOfMemory
from shoal.core.errors import ShoalError
from shoal.shell import disk
from shoal_lab.experiment import Experiment, run
from shoal_lab.tables.table import Cell

Results = dict[str, Mapping[str, Any]]
"""What an experiment found, by the cell's name."""


def finished(cells: Sequence[Cell], folder: Path) -> Results:
    """What is on the disk of these cells. A result of other settings, or of another version, is none."""
    kept = {cell.name: _kept(folder, cell) for cell in cells}
    return {name: each["result"] for name, each in kept.items() if each is not None}


def stored(cells: Sequence[Cell], folder: Path) -> int:
    """How many of these cells have a file, which is not read."""
    return sum(path_of(folder, cell).exists() for cell in cells)


def seeds(folder: Path) -> list[int]:
    """All seeds of which a cell is stored."""
    return sorted({int(path.name.split("-")[1]) for path in (folder / "cells").glob("seed-*-*.json")})


def _kept(folder: Path, cell: Cell) -> Mapping[str, Any] | None:
    try:
        found: Mapping[str, Any] = json.loads(path_of(folder, cell).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return found if found.get("settings") == _settings(cell.experiment) else None


def run_cells(
    cells: Sequence[Cell],
    folder: Path,
    *,
    jobs: int,
    seconds: float,
    on_result: Callable[[Cell, Mapping[str, Any]], None],
) -> dict[str, str]:
    """Run `cells`, `jobs` at a time; none is begun after `seconds`. `on_result` is given each result. Cells
    that are the same experiment are run once.

    Returns why cells failed, by name: an experiment that is refused, or ends in any other error, or with its
    process, ends only itself. Raises StorageFault.
    """
    failed: dict[str, str] = {}
    alike: dict[Path, list[Cell]] = {}
    for cell in cells:
        alike.setdefault(path_of(folder, cell), []).append(cell)
    waiting, began = list(reversed(alike)), time.monotonic()
    with ExitStack() as stack:
        idle = [stack.enter_context(process()) for _ in range(jobs)]
        running: dict[Future[Mapping[str, Any]], tuple[Path, ProcessPoolExecutor]] = {}
        while True:
            while waiting and idle and time.monotonic() - began < seconds:
                path, worker = waiting.pop(), idle.pop()
                running[worker.submit(_run, alike[path][0].experiment)] = path, worker
            if not running:
                return failed
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                path, worker = running.pop(future)
                same, outcome = alike[path], _outcome(future)
                if future.exception() is not None:
                    # What it leaves behind, such as a GPU that no longer answers, is not for other cells.
                    worker.shutdown()
                    worker = stack.enter_context(process())
                idle.append(worker)
                if "failed" in outcome:
                    failed |= {cell.name: outcome["failed"] for cell in same}
                    continue
                kept = {"settings": _settings(same[0].experiment), "result": outcome}
                disk.write(path, json.dumps(kept, indent=1).encode())
                for cell in same:
                    on_result(cell, outcome)


def process() -> ProcessPoolExecutor:
    """A process for cells, which ends with this one.

    Not a fork: PyTorch's threads do not survive one. And one for each job: where a process of several dies,
    all of them end.
    """
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=spawn, initializer=_end_with_parent)


def _end_with_parent() -> None:
    """Else a campaign that is killed leaves processes that wait for cells, and keep their memory."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


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


def kept_cells(cells: Sequence[Cell], folder: Path) -> dict[str, dict[str, Any]]:
    """Those of these cells that are stored, each as `small` has it, by name. Half a file is none."""
    kept = {cell.name: _kept(folder, cell) for cell in cells}
    return {name: small(each) for name, each in sorted(kept.items()) if each is not None}


def _outcome(future: Future[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The result, or why there is none."""
    try:
        return future.result()
    except BrokenExecutor:
        return {"failed": "its process died (is memory short? use fewer --jobs)"}
    except Exception as error:  # a bug, whose cause is found by all of its traceback
        return {"failed": "".join(traceback.format_exception(error)).rstrip()}


def _run(experiment: Experiment) -> Mapping[str, Any]:
    """Run it in this process, which then gives the GPU's memory back: PyTorch would keep it, and other
    processes have none to spare."""
    try:
        return run(experiment)
    except (torch.cuda.OutOfMemoryError, OutOfMemory):
        return {
            "failed": "the GPU has too little memory for it beside what else runs there (use fewer --jobs)"
        }
    except ShoalError as error:
        return {"failed": str(error)}
    finally:
        gc.collect()
        torch.cuda.empty_cache()


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


def path_of(folder: Path, cell: Cell) -> Path:
    """The file of an experiment: the same for all cells that have the same settings."""
    settings = json.dumps(_settings(cell.experiment), sort_keys=True).encode()
    digest = hashlib.sha256(settings).hexdigest()[:16]
    return folder / "cells" / f"seed-{cell.experiment.seed}-{digest}.json"
