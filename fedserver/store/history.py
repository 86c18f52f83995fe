"""Which history a server lives in, so that one that was restored from the past is recognised.

Every start has a number and a random name, and a revision that grows with every transition that a device may
have been told of. A device is given these as a mark, keeps it on its disk and shows it at its next hello. A
server that is shown a start which it does not know, or a revision that it has not reached, has lost what it
once told: it was restored from a backup, or two servers go on from one. It then begins nothing new until its
operator accepts the loss (`fedserver recover --accept`).

A mark carries a code that only the servers of one history can make, for otherwise any device could stop a
server with a mark that it made up, or with one of a server that it belonged to before.
"""

import hmac
import secrets
import time
from typing import NamedTuple

from fedserver.store.database import Database
from shoal.core.types import DeviceId


class Mark(NamedTuple):
    """A point of a history: `revision` of the start `number`, whose random name is `boot`."""

    number: int
    boot: str
    revision: int

    def __str__(self) -> str:
        return f"{self.number}.{self.boot}.{self.revision}"


class Epoch(Database):
    """The starts of a server, and what devices showed."""

    def boot(self) -> None:
        """A start: it has a number from here on."""
        self._begin(0, 0)

    def mark(self) -> str:
        """What happened until now, for a device to keep."""
        return f"{self._now()}.{self._code(self._now())}"

    def doubt(self, device: DeviceId, text: str) -> str:
        """What a device has seen that this server's history does not hold; "" when it holds it all.

        It is on the disk on return: a restart forgets no doubt.
        """
        mark = self._ours(text)
        if mark is None or not (why := self._unknown(mark)):
            return ""
        with self._transaction():
            self._run("INSERT OR REPLACE INTO doubts VALUES (?, ?, ?)", (device, text, time.time()))
        return why

    def doubts(self) -> dict[DeviceId, str]:
        """The devices whose marks are doubted, and what they have seen."""
        found = {}
        for device, text in self._all("SELECT device, mark FROM doubts ORDER BY device"):
            mark = self._ours(text)
            found[device] = self._unknown(mark) if mark else text
        return found

    def accept(self) -> None:
        """Go on from what is here: a start beyond all marks that were shown, which are not doubted again."""
        shown = [self._ours(text) for (text,) in self._all("SELECT mark FROM doubts")]
        marks = [mark for mark in shown if mark is not None]
        self._begin(
            max((mark.number for mark in marks), default=0), max((mark.revision for mark in marks), default=0)
        )
        with self._transaction():
            self._run("UPDATE epoch SET floor = ?", (self._now().number,))
            self._run("DELETE FROM doubts", ())

    def _advance(self) -> None:
        """In a transaction: something happens that devices are told of."""
        self._run(
            "UPDATE boots SET revision = revision + 1 WHERE number = (SELECT max(number) FROM boots)", ()
        )

    def _begin(self, number: int, revision: int) -> None:
        """A new start, beyond these and all that were here."""
        with self._transaction():
            self._run(
                "INSERT INTO boots SELECT"
                " max(ifnull(max(number), 0), ?) + 1, ?, max(ifnull(max(revision), 0), ?) FROM boots",
                (number, secrets.token_hex(8), revision),
            )

    def _now(self) -> Mark:
        (row,) = self._all("SELECT number, boot, revision FROM boots ORDER BY number DESC LIMIT 1")
        return Mark(*row)

    def _unknown(self, mark: Mark) -> str:
        ((floor,),) = self._all("SELECT floor FROM epoch")
        if mark.number < floor:
            return ""
        rows = self._all("SELECT boot, revision FROM boots WHERE number = ?", (mark.number,))
        if not rows or rows[0]["boot"] != mark.boot:
            return f"start {mark.number}, which this server has not made"
        if mark.revision <= rows[0]["revision"]:
            return ""
        return f"revision {mark.revision} of start {mark.number}, which ended here at {rows[0]['revision']}"

    def _ours(self, text: str) -> Mark | None:
        """A mark that was made with this history's secret; None for any other text."""
        parts = text.split(".")
        if len(parts) != 4 or not all(part.isascii() and part.isdecimal() for part in (parts[0], parts[2])):
            return None
        mark = Mark(int(parts[0][:18]), parts[1], int(parts[2][:18]))
        return mark if hmac.compare_digest(parts[3].encode(), self._code(mark).encode()) else None

    def _code(self, mark: Mark) -> str:
        ((secret,),) = self._all("SELECT secret FROM epoch")
        return hmac.new(secret, str(mark).encode(), "sha256").hexdigest()
