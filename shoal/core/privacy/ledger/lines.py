"""The lines of a device's ledger as bytes, and the chain of their hashes.

    {"entry": "debit", "number": 1, "at": ..., "payment": {"kind": ..., "cost": {...}, ...}, ...}
    {"entry": "release", "debit": 1, "at": ..., "release": SHA-256, ...}
    {"entry": "failure", "at": ..., "run": ..., "code": ..., ...}
    {"entry": "sum", "at": ..., "run": ..., "update": {"cohort": SHA-256, ...}, ...}
    {"entry": "reserve", "at": ..., "run": ..., "cost": {"rho": ..., "curve": [...]}, ...}
    {"entry": "give-back", "at": ..., "run": ..., ...}

Each line ends with "previous", the SHA-256 of the line before it (64 zeros in the first line). The head,
which is stored beside the ledger, has that of the last line. So every line that was changed, removed or moved
is found. Anyone who can write both files can invent another history: a ledger protects against accidents and
careless edits, and what the server has recorded shows the rest. This module touches no files.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

from shoal.core.data.from_json import value_of
from shoal.core.errors import LedgerFault
from shoal.core.privacy.ledger.book import Book
from shoal.core.privacy.ledger.entries import (
    Debit,
    Entry,
    Failed,
    GivenBack,
    Open,
    Release,
    Reserved,
    Summed,
)

NOTHING = "0" * 64
"""The hash before the first line."""

_KINDS: Mapping[str, type[Entry]] = {
    "debit": Debit,
    "release": Release,
    "open": Open,
    "failure": Failed,
    "sum": Summed,
    "reserve": Reserved,
    "give-back": GivenBack,
}
_NAMES = {cls: name for name, cls in _KINDS.items()}


@dataclass(frozen=True)
class Head:
    """The end of a ledger: the number of lines, and the hash of the last one."""

    lines: int = 0
    last: str = NOTHING


class Chain:
    """Reads a ledger line by line, and goes on where it stopped. book: what was read; data: its bytes."""

    def __init__(self) -> None:
        self.book, self.data, self._hashes = Book(), b"", [NOTHING]

    @property
    def head(self) -> Head:
        return Head(len(self._hashes) - 1, self._hashes[-1])

    def read(self, data: bytes, head: Head) -> None:
        """Read the lines of `data`, which begin with those that were read before.

        There may be more lines than `head` says, after a crash or while another process writes. Raises
        LedgerFault, which names the line; then this chain is of no more use.
        """
        if data and not data.endswith(b"\n"):
            raise LedgerFault("the ledger's last line is cut off")
        for line in data[len(self.data) :].splitlines():
            self._take(line)
        self.data = data
        lines = len(self._hashes) - 1
        if lines < head.lines:
            raise LedgerFault(f"the ledger has {lines} lines, and there were {head.lines}")
        if self._hashes[head.lines] != head.last:
            raise LedgerFault(f"line {head.lines} of the ledger is not the one that was written")

    def _take(self, line: bytes) -> None:
        number = len(self._hashes)
        try:
            fields = json.loads(line)
            previous, kind = fields.pop("previous"), _KINDS[fields.pop("entry")]
            entry = value_of(kind, fields)
            whole = line_of(entry, previous) == line + b"\n"
            if previous == self._hashes[-1] and whole:
                self.book.add(entry)
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
            raise LedgerFault(f"line {number} of the ledger cannot be read: {error}") from None
        if previous != self._hashes[-1] or not whole:
            raise LedgerFault(f"line {number} of the ledger does not follow from the line before it")
        self._hashes.append(sha256(line).hexdigest())


def line_of(entry: Entry, previous: str) -> bytes:
    """Encode an entry as a line, with its line end."""
    fields: dict[str, Any] = {"entry": _NAMES[type(entry)], **asdict(entry), "previous": previous}
    return json.dumps(fields, allow_nan=False).encode() + b"\n"


def head_from(fields: Any) -> Head:
    """Read a head from its JSON fields. Raises LedgerFault."""
    try:
        head = Head(**fields)
        if type(head.lines) is int and head.lines >= 0 and type(head.last) is str:
            return head
    except TypeError:
        pass
    raise LedgerFault("the ledger's head cannot be read")
