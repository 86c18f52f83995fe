"""Whether the audit log is what it was: file against chain, table against chain, one against the other.

Works beside a running server and without one; it changes nothing.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from fedserver.authority.chain import Head, follow
from fedserver.store.identities.audit import FILE
from shoal.core.errors import NotFound, StorageFault

MOMENT = 0.5
"""Seconds that a running server may take from a line in the table to the same line in the file."""


@dataclass(frozen=True)
class Verdict:
    """head: the last sound line. wrong: what is wrong with the line after it, "" if the log is whole.

    expected: whether a head that was noted before is still part of the log.
    """

    head: Head
    wrong: str = ""
    expected: bool = True


def verify(state: Path, expected: Head | None = None) -> Verdict:
    """Follow the whole log. expected: the number and hash of a line, noted elsewhere at an earlier time."""
    verdict = _verify(state, expected)
    if verdict.wrong:  # the server may be between the two
        time.sleep(MOMENT)
        verdict = _verify(state, expected)
    return verdict


def lines(state: Path) -> Iterator[str]:
    """The lines of the file. Raises NotFound when there is none."""
    path = state / FILE
    try:
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            for line in file:
                yield line.removesuffix("\n")
    except FileNotFoundError:
        raise NotFound(f"there is no {path}", "give the folder of a server with --state") from None


def _verify(state: Path, expected: Head | None) -> Verdict:
    head, met = Head(), expected is None
    for line, stored in zip_longest(lines(state), _stored(state)):
        number = head.number + 1
        if line is None:
            return Verdict(head, f"line {number} is missing in {FILE}", met)
        following, wrong = follow(head, line)
        if wrong:
            return Verdict(head, f"line {number} of {FILE}: {wrong}", met)
        if stored != line:
            reason = "is not in the database" if stored is None else "is another in the database"
            return Verdict(head, f"line {number} of {FILE} {reason}", met)
        head, met = following, met or following == expected
    return Verdict(head, "", met)


def _stored(state: Path) -> Iterator[str]:
    """The lines of the table."""
    path = state / "shoal.db"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            for (line,) in database.execute("SELECT line FROM audit ORDER BY number"):
                yield line
    except sqlite3.Error as error:
        raise StorageFault(f"{path}: {error}", "look at the state folder's disk") from error
