"""The audit log: lines in the database, written in the transaction that they report, and a copy in a file.

    with database.transaction():
        ...                                             # make the change
        audit.record(Event.REVOKED, device=device)      # and record it

Each line is JSON and contains the hash of the previous line, so a changed, inserted or removed line is
noticed:

    {"at": "2026-03-01T09:00:00.125Z", "event": "joined", "facts": {...}, "hash": "...", "number": 7,
     "previous": "..."}

hash is the SHA-256, in hexadecimal, of the line's JSON without this field, with sorted keys and no spaces.

The table is authoritative: it contains a line if and only if what the line reports has happened. The file,
audit.jsonl, is for operators and their tools. The server completes it after each commit and at each start.
Since both hold every line, `fedserver audit verify` notices if lines of one of them were removed or changed.
"""

import contextlib
import hashlib
import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fedserver.store.database import Database
from fedserver.store.integrity.redundancy import DamagedRow
from shoal.core.errors import NotFound, StorageFault

FILE = "audit.jsonl"
"""The file of a state folder that holds a copy of the log."""

NO_HASH = "0" * 64
"""The previous hash in the first line."""
MAX_FACT = 500
"""The most characters of a fact that are recorded, since facts can contain text from a peer."""


ACTING: ContextVar[str] = ContextVar("operator", default="")
"""The operator whose call is carried out, if it came over the network: each line that is recorded meanwhile
has that name. A call on the Unix socket has none: everyone who can open the socket is the same user."""


def by_no_one() -> Context:
    """The present context, without the operator whose call is carried out: for work that outlives the call,
    such as that which a round sets off when it closes."""
    found = copy_context()
    found.run(ACTING.set, "")
    return found


class Event(Enum):
    """The events that are recorded. `fedserver audit show --event NAME` takes these names."""

    INIT = "init"
    START = "start"
    STOP = "stop"
    TOKEN_CREATED = "token-created"  # noqa: S105 - an event's name
    TOKEN_REVOKED = "token-revoked"  # noqa: S105
    TOKEN_LOCKED = "token-locked"  # noqa: S105
    JOINED = "joined"
    JOIN_REFUSED = "join-refused"
    APPROVED = "approved"
    REVOKED = "revoked"
    WITHDRAWN = "withdrawn"
    KEY_CHANGED = "key-changed"
    RETURNED = "returned"
    RETURN_REFUSED = "return-refused"
    AUTHORITY_ROTATED = "authority-rotated"
    DENIED = "denied"
    PLACED = "placed"
    RUN_STARTED = "run-started"
    RUN_ENDED = "run-ended"
    RUN_PAUSED = "run-paused"
    RUN_RESUMED = "run-resumed"
    RUN_CHANGED = "run-changed"
    RUN_PRUNED = "run-pruned"
    RUN_REMOVED = "run-removed"
    RELEASE_MADE = "release-made"
    RELEASE_REMOVED = "release-removed"
    CHANNEL_MOVED = "channel-moved"
    ROLLOUT_BEGUN = "rollout-begun"
    ROLLOUT_ENDED = "rollout-ended"
    UPDATE_REFUSED = "update-refused"
    LOG_SET_ASIDE = "log-set-aside"
    RESTORED = "restored"
    OPERATOR_ADDED = "operator-added"
    OPERATOR_REVOKED = "operator-revoked"


@dataclass(frozen=True)
class Head:
    """The last line of a log: its number, from 1, and its hash. An empty log has 0 and NO_HASH."""

    number: int = 0
    hash: str = NO_HASH


def link(head: Head, at: float, event: Event, facts: Mapping[str, Any]) -> tuple[Head, str]:
    """Make the line after `head`. Returns the new head, and the line. at: clock time."""
    clock = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    kept = {name: _short(value) for name, value in facts.items() if value is not None}
    number = head.number + 1
    line = {"number": number, "at": clock, "event": event.value, "facts": kept, "previous": head.hash}
    line["hash"] = _hash(line)
    return Head(number, str(line["hash"])), _json(line)


def follow(head: Head, text: str) -> tuple[Head, str]:
    """Check that a line follows `head`.

    Returns the new head, and what is wrong with the line, "" if nothing.
    """
    try:
        line = json.loads(text)
        said = line.pop("hash")
        number, previous = line["number"], line["previous"]
    except (ValueError, KeyError, AttributeError, TypeError):
        return head, "it is not a line of this log"
    if number != head.number + 1:
        return head, f"its number is {number}, but {head.number + 1} was expected"
    if previous != head.hash:
        return head, "it does not follow the previous line"
    if said != _hash(line) or text != _json({**line, "hash": said}):
        return head, "its content was changed"
    return Head(number, said), ""


def head_of(text: str) -> Head:
    """The number and hash that a line states, without checking them; number 0 if it is not a line."""
    try:
        line = json.loads(text)
        return Head(int(line["number"]), str(line["hash"]))
    except (ValueError, KeyError, TypeError):
        return Head()


def _hash(line: Mapping[str, Any]) -> str:
    return hashlib.sha256(_json(line).encode()).hexdigest()


def _json(line: Mapping[str, Any]) -> str:
    """The canonical text of a line, in ASCII, so that characters from a peer cannot start a new line."""
    return json.dumps(line, sort_keys=True, separators=(",", ":"))


def _short(value: Any) -> Any:
    return value[:MAX_FACT] if isinstance(value, str) else value


# -- the log of a server ------------------------------------------------------------------------------------

log = logging.getLogger("shoal.audit")

TAIL = 1 << 16
"""How many bytes at the end of the file are read to find its last line. No line is that long."""


class AuditLog:
    """The log of one state folder. _written: how many lines the file has, or None if that is not known."""

    def __init__(self, database: Database, state: Path) -> None:
        self._db, self._file = database, state / FILE
        self._written: int | None = None
        self._complete()

    def note(self, event: Event, /, **facts: Any) -> None:
        """Record an event that does not change anything else in the database."""
        with self._db.transaction():
            self.record(event, **facts)

    def head(self) -> Head:
        """The last line. Of one that is damaged, the number is known from the table."""
        for number, line in self._db.query("SELECT number, line FROM audit ORDER BY number DESC LIMIT 1"):
            return Head(number, head_of(line).hash)
        return Head()

    def newest(self) -> float | None:
        """When the last line was written, in seconds since 1970; None if there is none that says so."""
        for (line,) in self._db.query("SELECT line FROM audit ORDER BY number DESC LIMIT 1"):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                return datetime.fromisoformat(json.loads(line)["at"]).timestamp()
        return None

    def record(self, event: Event, /, **facts: Any) -> None:
        """Inside a transaction: record an event, and the operator whose call this is. Facts that are None are
        left out. Never pass a secret."""
        facts = {**facts, "operator": ACTING.get() or facts.get("operator") or None}
        head, line = link(self.head(), time.time(), event, facts)
        self._db.execute("INSERT INTO audit (number, line) VALUES (?, ?)", (head.number, line))
        self._db.after_commit(self._complete)

    # -- the file -------------------------------------------------------------------------------------------

    def _complete(self) -> None:
        """Append to the file the lines that only the table has.

        A failure is tried again at the next commit.
        """
        try:
            if self._written is None:
                self._take_up()
            with contextlib.suppress(DamagedRow):  # a line that is lost: `verify` says which, at any time
                self._db.rows("audit", "WHERE number > ?", (self._written,))  # restores what is damaged
            new = "SELECT number, line FROM audit WHERE number > ? ORDER BY number"
            rows = self._db.query(new, (self._written,))
            descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                file.write("".join(f"{row['line']}\n" for row in rows).encode())
        except OSError as error:
            log.error("%s cannot be written and is behind the database: %s", self._file, error)
            self._written = None
        else:
            self._written = rows[-1]["number"] if rows else self._written

    def _take_up(self) -> None:
        """Find the last line of the file.

        If the table does not have it, the file is set aside. Raises OSError.
        """
        last = _last_line(self._file)
        self._written = head_of(last).number
        kept = [
            line for (line,) in self._db.query("SELECT line FROM audit WHERE number = ?", (self._written,))
        ]
        if last and kept != [last]:
            aside = self._file.with_name(f"{FILE}.{time.time_ns()}")
            self._file.rename(aside)
            self._written = 0
            self.note(Event.LOG_SET_ASIDE, reason="its last line is not in the database", kept_as=aside.name)


def _last_line(path: Path) -> str:
    """The last complete line of a file, "" if there is none. A line that a crash cut off is removed."""
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


# -- verification -------------------------------------------------------------------------------------------

LINES = "SELECT line FROM audit ORDER BY number"
COPY_SECONDS = 0.5
"""How many seconds a running server may take to copy a line from the table to the file."""


@dataclass(frozen=True)
class Verdict:
    """The result of a verification.

    head: the last correct line. wrong: what is wrong with the line after it, "" if the log is intact.
    expected: whether the head that the caller expected is part of the log.
    """

    head: Head
    wrong: str = ""
    expected: bool = True


def verify(
    state: Path, expected: Head | None = None, table: Callable[[str], Iterable[Sequence[Any]]] | None = None
) -> Verdict:
    """Verify the whole log. expected: the number and hash of a line, recorded elsewhere at an earlier time.

    table: queries the database if it is not in the folder. On a server that stands by, the file ends where it
    led last, so only the leader's folder can be verified.
    """
    verdict = _verify(state, expected, table)
    if verdict.wrong:  # a running server may not have copied the last lines to the file yet
        time.sleep(COPY_SECONDS)
        verdict = _verify(state, expected, table)
    return verdict


def lines(state: Path) -> Iterator[str]:
    """The lines of the file. Raises NotFound if there is no file."""
    path = state / FILE
    try:
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            for line in file:
                yield line.removesuffix("\n")
    except FileNotFoundError:
        raise NotFound(f"{path} does not exist", "give a server's state folder with --state") from None


def _verify(
    state: Path, expected: Head | None, table: Callable[[str], Iterable[Sequence[Any]]] | None
) -> Verdict:
    head, met = Head(), expected is None
    kept = _stored(state) if table is None else (line for (line,) in table(LINES))
    for line, stored in zip_longest(lines(state), kept):
        number = head.number + 1
        if line is None:
            return Verdict(head, f"line {number} is missing in {FILE}", met)
        following, wrong = follow(head, line)
        if wrong:
            return Verdict(head, f"line {number} of {FILE}: {wrong}", met)
        if stored != line:
            reason = "is not in the database" if stored is None else "differs from the database"
            return Verdict(head, f"line {number} of {FILE} {reason}", met)
        head, met = following, met or following == expected
    return Verdict(head, "", met)


def _stored(state: Path) -> Iterator[str]:
    """The lines of the table."""
    path = state / "shoal.db"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            for (line,) in database.execute(LINES):
                yield line
    except sqlite3.Error as error:
        raise StorageFault(f"{path}: {error}", "check the disk of the state folder") from error
