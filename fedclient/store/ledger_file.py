"""The files of a device's ledger. What may be added to them is for `fedclient.store.ledger` to say.

<state>/privacy/ledger.jsonl   a line for each entry; lines are only added
<state>/privacy/head           the number of lines, and the hash of the last
<state>/privacy/releases/N     the bytes that debit N paid for
<state>/privacy/failures.json  failures that are not lines any more: see `fedclient.store.failures`
<state>/privacy/lock           held while a line is added

Each file is replaced in one step, so that no crash leaves half a line. A line is added together with its
head, or not at all where the disk is full. The file is compared with what was read before, and only the lines
that are new are read and added up: a byte that was changed anywhere is found as if all lines had been read.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path

from shoal.core.errors import LedgerFault
from shoal.core.privacy.ledger.book import Book
from shoal.core.privacy.ledger.entries import Entry, Release
from shoal.core.privacy.ledger.lines import Chain, Head, head_from, line_of
from shoal.shell.disk import check_room, lock_within, make_folder, storing, sweep, write, write_together

WAIT = 2.0
"""Seconds to wait for another device that shares the ledger: it holds the lock for milliseconds."""
LEDGER, HEAD, RELEASES = "ledger.jsonl", "head", "releases"
MIN_FREE_BYTES = 1 << 20
"""Bytes that have to be free beside a copy of the ledger before anything is paid: more than a descriptor."""
HINT = (
    "a damaged ledger releases nothing. Restore the folder from a backup; or see what `fedclient ledger "
    "verify` reports, and move the folder away to start with nothing spent, if you can take responsibility "
    "for that"
)


class LedgerFile:
    """The ledger in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._chain = folder, Chain()

    def read(self) -> Book:
        """All entries. Raises LedgerFault if the ledger was changed or is damaged.

        The head is read first: if another process appends meanwhile, there are more lines, and never fewer.
        """
        head_path, path = self._folder / HEAD, self._folder / LEDGER
        with storing(self._folder):
            head = head_path.read_bytes() if head_path.exists() else None
            data = path.read_bytes() if path.exists() else b""
        if not data.startswith(self._chain.data):
            self._chain = Chain()
        try:
            if head is None and data:
                raise LedgerFault("the ledger's head is missing")
            self._chain.read(data, head_from(json.loads(head)) if head is not None else Head())
        except (LedgerFault, ValueError) as error:
            self._chain = Chain()
            message = error.message if isinstance(error, LedgerFault) else "the ledger's head cannot be read"
            raise LedgerFault(f"{path}: {message}", HINT) from None
        return self._chain.book

    def append(self, entry: Entry) -> None:
        """Add an entry to what `locked` gave. On return it and the new head are on the disk.

        Raises LedgerFault, before anything is written, for an entry with which the ledger could not be read
        any more, and DiskFull, before anything is changed.
        """
        data, before = self._chain.data, self._chain.head
        line = line_of(entry, before.last)
        after = Head(before.lines + 1, sha256(line[:-1]).hexdigest())
        try:
            self._chain.read(data + line, after)
        except LedgerFault:
            self._chain = Chain()
            raise
        if before.lines == 0:  # from now on, a ledger without a head has lost it
            write(self._folder / HEAD, _head_bytes(before))
        write_together((self._folder / LEDGER, data + line), (self._folder / HEAD, _head_bytes(after)))

    def check_room(self) -> None:
        """Raises DiskFull where there is no room for a debit and what it pays for."""
        check_room(self._folder, len(self._chain.data) + MIN_FREE_BYTES)

    @contextmanager
    def locked(self) -> Iterator[Book]:
        """All entries, while no other process can add any. Raises InUse if one does not stop, and what
        `read` raises."""
        path = self._folder / "lock"
        with storing(path):
            make_folder(self._folder)
            file = lock_within(path, WAIT)
        with file:
            for folder in (self._folder, self._folder / RELEASES):
                sweep(folder)
            yield self.read()

    # -- what was released ------------------------------------------------------------------------------

    def path_of(self, debit: int) -> Path:
        """Where the bytes are that a debit paid for, as long as they are there."""
        return self._folder / RELEASES / str(debit)

    def bytes_of(self, found: Release) -> bytes:
        """Raises LedgerFault for bytes that are gone, or are not what was released."""
        path = self.path_of(found.debit)
        with storing(path):
            data = path.read_bytes() if path.exists() else None
        if data is None or sha256(data).hexdigest() != found.release:
            what = "is gone" if data is None else "is not what was released"
            raise LedgerFault(f"{path} {what}", "remove what is left of it; the next release is paid again")
        return data


def _head_bytes(head: Head) -> bytes:
    return json.dumps(asdict(head)).encode()
