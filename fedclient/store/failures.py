"""Failures of tasks: the first are lines of the ledger, and of the later ones the newest are kept beside it.

<state>/privacy/failures.json   {"before": 7, "newest": [[seconds since 1970, "RUN", "CODE"], ...]}

A server decides how often a task fails, so the ledger, which only grows, must not have a line for each. The
file is not chained, since no debit is in it; if it cannot be read, a new one begins. before: how many
failures, without those that are lines, are older than the newest.
"""

import json
from dataclasses import astuple
from pathlib import Path
from typing import Any

from fedclient.store.ledger_file import LedgerFile
from shoal.core.privacy.ledger.entries import Entry, Failed, FailedBefore
from shoal.shell.disk import storing, write

FAILURES = "failures.json"
LINES, NEWEST = 500, 500
"""How many failures are lines of a ledger, and how many are kept beside it."""


class Failures:
    """Of the devices whose ledger is in `folder`."""

    def __init__(self, ledger: LedgerFile, folder: Path) -> None:
        self._ledger, self._path = ledger, folder / FAILURES

    def add(self, failed: Failed) -> None:
        """Write one down. Raises LedgerFault, StorageFault."""
        with self._ledger.locked() as book:
            if book.failures < LINES:
                self._ledger.append(failed)
            else:
                self._keep(failed)

    def _keep(self, failed: Failed) -> None:
        before, newest = self._read()
        newest.append(failed)
        kept = [astuple(each) for each in newest[-NEWEST:]]
        found = {"before": before + len(newest) - len(kept), "newest": kept}
        write(self._path, json.dumps(found).encode())

    def beside(self) -> list[Entry]:
        """Those that are no lines, oldest first. Raises StorageFault."""
        before, newest = self._read()
        return [*([FailedBefore(before)] if before else []), *newest]

    def _read(self) -> tuple[int, list[Failed]]:
        with storing(self._path):
            data = self._path.read_bytes() if self._path.exists() else b""
        try:
            found = json.loads(data)
            before, newest = found["before"], [_failed(*each) for each in found["newest"]]
            return (before, newest) if type(before) is int and before >= 0 else (0, newest)
        except (ValueError, TypeError, KeyError, RecursionError):
            return 0, []


def _failed(at: Any, run: Any, code: Any) -> Failed:
    if type(at) is not float or type(run) is not str or type(code) is not str:
        raise ValueError
    return Failed(at, run, code)
