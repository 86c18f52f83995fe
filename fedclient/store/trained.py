"""On which version of its data a device has trained last, in each series of standing runs.

<state>/trained.json   {"SERIES": ["RUN", "SHA-256 of the data"]}, the latest last

A later run of the series has no use for data that an earlier one has trained on already, and its owner would
pay for them again: so the device has no part in it, where its owner lets the server know that (the ledger's
`tells`). The file never leaves the device. What cannot be read is
as if it was not there: then the device trains, within its budget.
"""

import json
from contextlib import suppress
from pathlib import Path

from shoal.core.errors import NoNewData
from shoal.core.types import RunId
from shoal.shell.disk import write

MAX_SERIES = 100
"""Series that are kept: a hostile server must not fill the disk with names."""


class Trained:
    """What `file` says."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @classmethod
    def beside(cls, folder: Path) -> "Trained":
        """Of the device whose blobs are in `folder`."""
        return cls(folder.parent / "trained.json")

    def check(self, series: str, run: RunId, data: str) -> None:
        """Raises NoNewData where an earlier run of the series has trained on these data."""
        before, version = self._read().get(series, (run, ""))
        if before != run and version == data:
            raise NoNewData(
                f"run {run} goes on from what run {before} has learned, and the data of this device have "
                "not changed since",
                "nothing has to be done: it takes part in the next run after they have changed",
            )

    def note(self, series: str, run: RunId, data: str) -> None:
        """The device has trained on these data. Raises StorageFault."""
        known = self._read()
        if known.get(series) != (run, data):
            known.pop(series, None)
            known[series] = run, data
            write(self._file, json.dumps(dict(list(known.items())[-MAX_SERIES:])).encode())

    def _read(self) -> dict[str, tuple[RunId, str]]:
        with suppress(OSError, ValueError, TypeError, AttributeError):
            return {
                name: (str(run), str(data))
                for name, (run, data) in json.loads(self._file.read_bytes()).items()
            }
        return {}
