"""What was made for a debit while a full disk refused to store it: kept in memory, and stored later.

Otherwise a device that tries again would pay again, although nothing has left it. After a crash it is gone,
as is all that was paid and not stored.
"""

from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256

from fedclient.store.ledger_file import LedgerFile
from shoal.core.errors import ConfigError
from shoal.core.privacy.ledger.book import Book
from shoal.core.privacy.ledger.entries import Debit, Release
from shoal.shell import crash
from shoal.shell.disk import write


class Unsettled:
    """For one ledger. clock: seconds since 1970."""

    def __init__(self, file: LedgerFile, clock: Callable[[], float]) -> None:
        self._file, self._clock = file, clock
        self._made: list[tuple[Debit, str, bytes | None]] = []

    def add(self, debit: Debit, release: str, data: bytes | None = None) -> None:
        """Keep what was made for a debit. release: its SHA-256. data: its bytes; None for weights, which are
        not stored with the ledger."""
        self._made.append((debit, release, data))

    def store(self, book: Book, debit: Debit, data: bytes) -> None:
        """Store what was released for a debit in a ledger that is locked, or else keep it."""
        self.add(debit, sha256(data).hexdigest(), data)
        self._settle(book)

    def settle(self) -> None:
        """Store all that is kept, as soon as no other process has the ledger: it is paid. Raises DiskFull as
        long as it does not fit; LedgerFault, StorageFault."""
        while self._made:
            with suppress(ConfigError), self._file.locked() as book:
                self._settle(book)

    def _settle(self, book: Book) -> None:
        while self._made:
            debit, release, data = self._made[0]
            if book.awaits(debit):  # else another ledger has taken its place, such as a backup of it
                if data is not None:  # before the line that says so
                    write(self._file.path_of(debit.number), data)
                    crash.point("device.release-stored")
                self._file.append(Release(debit.number, self._clock(), release))
                crash.point("device.release-noted")
            self._made.pop(0)
