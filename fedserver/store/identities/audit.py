"""The audit log: lines in the database, in the transaction that they tell of, and the same lines in a file.

    with self._transaction():
        ...                                            what happens
        self._audit(Event.REVOKED, device=device)      and that it did

The table is what counts: a line is there if and only if what it tells of is. The file, audit.jsonl, is for
people and their tools; it is completed after each commit, and at the start after a crash. Since both hold
every line, whoever removes or changes lines in one of them is found by `fedserver audit verify`.
"""

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedserver.authority.audit import FILE, Event, Head, head_of, link
from fedserver.store.database import Database

log = logging.getLogger("shoal.audit")

TAIL = 1 << 16
"""More bytes than a line has."""


class Audit(Database):
    """The log of one state folder; a part of the store. _written: lines of the file, None: not known."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._file = path.with_name(FILE)
        self._audited = False
        self._written: int | None = None
        self._complete()

    def note_event(self, event: Event, /, **facts: Any) -> None:
        """Something that changes nothing else in the database."""
        with self._transaction():
            self._audit(event, **facts)

    def head(self) -> Head:
        """The last line."""
        for (line,) in self._all("SELECT line FROM audit ORDER BY number DESC LIMIT 1"):
            return head_of(line)
        return Head()

    def _audit(self, event: Event, /, **facts: Any) -> None:
        """Inside a transaction: that this happened. Facts that are None are left out. No secrets."""
        head, line = link(self.head(), time.time(), event, facts)
        self._run("INSERT INTO audit VALUES (?, ?)", (head.number, line))
        self._audited = True

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._audited = False
        with super()._transaction():
            yield
        if self._audited:
            self._complete()

    # -- the file -------------------------------------------------------------------------------------------

    def _complete(self) -> None:
        """Add to the file what the table has more. What fails now is made up for next time."""
        query = "SELECT number, line FROM audit WHERE number > ? ORDER BY number"
        try:
            if self._written is None:
                self._take_up()
            rows = self._all(query, (self._written,))
            descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                file.write("".join(f"{row['line']}\n" for row in rows).encode())
        except (OSError, sqlite3.Error) as error:
            log.error("%s cannot be written, and is behind: %s", self._file, error)
            self._written = None
        else:
            self._written = rows[-1]["number"] if rows else self._written

    def _take_up(self) -> None:
        """See how far the file is; one that is not of this table is set aside and kept. Raises OSError."""
        last = _last_line(self._file)
        self._written = head_of(last).number
        kept = [line for (line,) in self._all("SELECT line FROM audit WHERE number = ?", (self._written,))]
        if last and kept != [last]:
            aside = self._file.with_name(f"{FILE}.{time.time_ns()}")
            self._file.rename(aside)
            self._written = 0
            self.note_event(Event.LOG_SET_ASIDE, reason="its end is not in the database", kept_as=aside.name)


def _last_line(path: Path) -> str:
    """The last whole line of a file, "" if there is none. What a crash left of a further one is cut off."""
    if not path.exists():
        return ""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL))
        data = file.read()
        whole, newline, rest = data.rpartition(b"\n")
        if rest:
            file.truncate(size - len(rest))
        return whole.rpartition(b"\n")[2].decode(errors="replace") if newline else ""
