"""The history of a server, by which a server that was restored from an older state is recognized.

Each start of a server has a number and a random name, and a revision that grows with every transition that a
device may have seen. A device receives the three as a mark, stores it, and shows it at its next hello. If the
mark names a start that the server does not know, or a revision that the server has not reached, the server
has lost something that it once acknowledged: it was restored from a backup, or two servers run on copies of
one state. It then begins nothing new until its operator accepts the loss (`fedserver recover --accept`).

The revision makes a loss visible within one start, and the random name makes it visible across starts: a
server that was restored from a backup begins a start with a number that the lost history may have used too,
and may even reach the same revision. Only the name tells these two starts apart.

A mark carries an authentication code that only servers with the same history can compute. Otherwise any
device could stop a server with an invented mark, or with the mark of another server that it belonged to
before. If that secret is lost to damage, the server goes on with a new one, and says so: marks from before
count no more, as if devices had shown none, and each device gets a new one.
"""

import hmac
import logging
import secrets
import time
from typing import NamedTuple

from fedserver.store.database import Database, Row
from shoal.core.types import DeviceId

log = logging.getLogger("shoal.server")


class Mark(NamedTuple):
    """A point in a history: `revision` of the start `number`, whose random name is `boot`."""

    number: int
    boot: str
    revision: int

    def __str__(self) -> str:
        return f"{self.number}.{self.boot}.{self.revision}"


class History:
    """The starts of a server, and the conflicting marks that devices have shown."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def begin_start(self, number: int = 0, revision: int = 0) -> None:
        """Record a new start of the server, with a number and a revision beyond these and those of all
        earlier starts."""
        with self._db.transaction():
            ((last, newest),) = self._db.query("SELECT max(number), max(revision) FROM boots")
            self._db.execute(
                "INSERT INTO boots (number, boot, revision) VALUES (?, ?, ?)",
                (max(last or 0, number) + 1, secrets.token_hex(8), max(newest or 0, revision)),
            )

    def mark(self) -> str:
        """The current point in the history, for a device to store."""
        return f"{self._present()}.{self._code(self._present())}"

    def check_mark(self, device: DeviceId, text: str) -> str:
        """What a device has seen that this server's history does not contain; "" if there is no such thing.

        A conflict is on disk on return, so that it is known after a restart.
        """
        mark = self._authentic(text)
        if mark is None or not (why := self._conflict(mark)):
            return ""
        with self._db.transaction():
            self._db.execute(
                "INSERT INTO doubts (device, mark, at) VALUES (?, ?, ?)"
                " ON CONFLICT (device) DO UPDATE SET mark = excluded.mark, at = excluded.at",
                (device, text, time.time()),
            )
        return why

    def conflicts(self) -> dict[DeviceId, str]:
        """The devices whose marks conflict with this history, and what they have seen."""
        found = {}
        for row in self._db.rows("doubts", "ORDER BY device"):
            mark = self._authentic(row["mark"])
            found[row["device"]] = self._conflict(mark) if mark else row["mark"]
        return found

    def accept(self) -> None:
        """Continue from the current state, in a new start; the marks shown so far no longer conflict.

        The new start gets a number and a revision beyond those of all conflicting marks. A mark that the
        server gives to a device from now on is therefore never confused with one of the history that was
        lost.
        """
        shown = [self._authentic(text) for (text,) in self._db.query("SELECT mark FROM doubts")]
        marks = [mark for mark in shown if mark is not None]
        self.begin_start(
            max((mark.number for mark in marks), default=0), max((mark.revision for mark in marks), default=0)
        )
        with self._db.transaction():
            self._db.execute("UPDATE epoch SET floor = ?", (self._present().number,))
            self._db.execute("DELETE FROM doubts", ())

    def advance(self) -> None:
        """Inside a transaction: count a transition that devices may see."""
        # In the same transaction as the transition: a mark never promises more than the disk holds.
        self._db.execute(
            "UPDATE boots SET revision = revision + 1 WHERE number = (SELECT max(number) FROM boots)", ()
        )

    def _present(self) -> Mark:
        (row,) = self._db.rows("boots", "ORDER BY number DESC LIMIT 1")
        return Mark(row["number"], row["boot"], row["revision"])

    def _conflict(self, mark: Mark) -> str:
        # Marks of starts below the floor do not matter: an operator has accepted the loss (`accept`).
        if mark.number < self._epoch()["floor"]:
            return ""
        rows = self._db.rows("boots", "WHERE number = ?", (mark.number,))
        if not rows or rows[0]["boot"] != mark.boot:
            return f"start {mark.number}, which this server does not know"
        if mark.revision <= rows[0]["revision"]:
            return ""
        return f"revision {mark.revision} of start {mark.number}, which ended here at {rows[0]['revision']}"

    def _authentic(self, text: str) -> Mark | None:
        """The mark, if its code was computed with this history's secret; None for any other text."""
        parts = text.split(".")
        if len(parts) != 4 or not all(part.isascii() and part.isdecimal() for part in (parts[0], parts[2])):
            return None
        mark = Mark(int(parts[0][:18]), parts[1], int(parts[2][:18]))
        return mark if hmac.compare_digest(parts[3].encode(), self._code(mark).encode()) else None

    def _code(self, mark: Mark) -> str:
        return hmac.new(self._epoch()["secret"], str(mark).encode(), "sha256").hexdigest()

    def _epoch(self) -> Row:
        """The secret and the floor. If both are lost, a new secret: no mark from before is authentic then, so
        none needs the floor, and conflicts that are known stay known."""
        if not (found := self._db.rows("epoch")):
            with self._db.transaction():
                self._db.insert("epoch", {"secret": secrets.token_bytes(32), "floor": 0})
            what = "the secret that authenticates marks was lost and is a new one: from what devices saw"
            what += " before, the server cannot tell any more whether it was restored from an older state"
            log.error("%s", what)
            self._db.repaired.insert(0, what)  # a status shows the first one
            found = self._db.rows("epoch")
        return found[0]
