"""What the store asks of a database. `fedserver.store.engines` has the two that there are.

SQL is written once, in what SQLite and PostgreSQL have in common: `?` or `?1` for values, `ON CONFLICT` with
the columns that conflict, columns named in every INSERT, and no function that only one of them has. Every
table has a column `rowid`, which tells in which order rows were inserted and is used for nothing else.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import Any, Protocol, TypeVar

from shoal.core.engine.checkpoint import decode, encode
from shoal.core.errors import StorageFault

T = TypeVar("T")
RESTORE = "keep the folder as it is, and restore a backup: fedserver restore BACKUP --state DIR"


class Row(Protocol):
    """A row of a table: its values in order, and each by the name of its column."""

    def __getitem__(self, key: Any, /) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...

    def keys(self) -> Sequence[str]: ...


def record_of(kind: type[T], row: Row, **others: Any) -> T:
    """The record that a row has. others: the fields that are not the column of their name, as it is."""
    names = [each.name for each in fields(kind) if each.name not in others]  # type: ignore[arg-type]
    return kind(**others, **{name: row[name] for name in names})


def to_text(kind: Any, value: object) -> str:
    """A record in one column, as JSON."""
    return json.dumps(encode(kind, value, _no_tensors), sort_keys=True)


def from_text(kind: type[T], text: str) -> T:
    """The record in a column. Raises ValueError, TypeError and DataFault for one that cannot be read."""
    found: T = decode(kind, json.loads(text), _no_tensors)
    return found


def _no_tensors(tensors: object) -> Any:
    raise TypeError("no tensors are stored here")


class Database(ABC):
    """All tables of a server, for one thread. Raises DiskFull if the disk is full, else StorageFault.

    repaired: what was found damaged since the start, and what became of it, for people. lost: done once this
    process may not write any more, with the reason; the session of a database in this process is never lost.
    """

    def __init__(self) -> None:
        self.repaired = list[str]()
        self.lost: Future[StorageFault] = Future()
        self._after_commit: dict[Callable[[], None], None] = {}

    @abstractmethod
    def execute(self, statement: str, values: Sequence[object] = ()) -> None:
        """Inside a transaction: change rows."""

    @abstractmethod
    def execute_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Inside a transaction: run a statement once for each of these values."""

    def insert(self, table: str, row: Mapping[str, object], otherwise: str = "") -> None:
        """Inside a transaction: add a row, given by column. otherwise: what follows in the statement, such as
        what is done where such a row is there already."""
        marks = ", ".join("?" * len(row))
        statement = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks}) {otherwise}"  # noqa: S608
        self.execute(statement, tuple(row.values()))

    @abstractmethod
    def query(self, query: str, values: Sequence[object] = ()) -> Sequence[Row]:
        """Rows as they are, for facts about many rows. What a decision depends on is read with `rows`."""

    @abstractmethod
    def rows(self, table: str, rest: str = "", values: Sequence[object] = ()) -> Sequence[Row]:
        """The rows of a table, each verified as far as the database can. Read their values by name.

        rest: what follows the table in the query. Raises DamagedRow if a row cannot be restored.

        Example:
            >>> database.rows("reports", "WHERE run = ? ORDER BY round", ("digits",))
        """

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """Commit all changes of the block together, or none of them; they are durable at its end."""

    @abstractmethod
    def check(self) -> None:
        """Verify all rows as they are stored, as far as the database can, and restore damaged ones."""

    def is_silent(self) -> bool:
        """Whether nothing was heard of the database for so long that another server may write by now."""
        return False

    @abstractmethod
    def close(self) -> None: ...

    def after_commit(self, action: Callable[[], None]) -> None:
        """Inside a transaction: call `action` once its rows are durable, and not at all if it is rolled
        back."""
        self._after_commit[action] = None
