"""The history of a run as files: one table each for rounds, clusters, devices, events and positions."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from shoal.core.server_kit.history.records import (
    ClusterRound,
    DeviceRound,
    Position,
    RoundHistory,
    RunEvent,
)
from shoal.shell import disk

Row = Mapping[str, Any]
PARTS = ("clusters", "devices", "events", "positions", "digest")
COLUMNS = {
    "rounds": [each.name for each in fields(RoundHistory) if each.name not in PARTS],
    "clusters": ["round", *(each.name for each in fields(ClusterRound))],
    "devices": ["round", *(each.name for each in fields(DeviceRound))],
    "events": ["round", *(each.name for each in fields(RunEvent))],
    "positions": ["round", "device", *(each.name for each in fields(Position))],
}
"""The columns of each table; `shoal.core.server_kit.history.records` explains them."""


def tables(rounds: Sequence[RoundHistory]) -> dict[str, list[Row]]:
    """The rows of each table. Lists of names are joined by spaces."""
    return {
        "rounds": [{name: getattr(each, name) for name in COLUMNS["rounds"]} for each in rounds],
        "clusters": [_row(each, part) for each in rounds for part in each.clusters],
        "devices": [_row(each, part) for each in rounds for part in each.devices],
        "events": [_row(each, part) for each in rounds for part in each.events],
        "positions": [
            {"round": each.round, "device": device, **asdict(place)}
            for each in rounds
            for device, place in each.positions.items()
        ],
    }


def _row(each: RoundHistory, part: Any) -> Row:
    flat = {
        name: " ".join(value) if isinstance(value, tuple) else value for name, value in asdict(part).items()
    }
    return {"round": each.round, **flat}


def write_tables(folder: Path, spec: Row, rounds: Sequence[RoundHistory]) -> list[Path]:
    """Write all tables as CSV files, and `spec` as run.json. Returns the files.

    Each file is whole or not there. Raises StorageFault.
    """
    contents = {f"{name}.csv": _csv(COLUMNS[name], rows) for name, rows in tables(rounds).items()}
    contents["run.json"] = json.dumps(spec, indent=1, default=str).encode()
    with disk.storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in contents.items():
            disk.write(folder / name, data)
    return [folder / name for name in contents]


def _csv(columns: list[str], rows: Iterable[Row]) -> bytes:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _plain(value) for name, value in row.items()} for row in rows)
    return stream.getvalue().encode()


def _plain(value: Any) -> Any:
    """A device chooses its name, and a spreadsheet would compute a text that begins like a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in "=+-@\t\r" else value
