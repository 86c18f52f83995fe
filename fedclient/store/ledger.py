"""The device's ledger of what it released with a guarantee, and the only way to make such a release.

<state>/privacy/ledger.jsonl   a line for each debit and for each release; lines are only added
<state>/privacy/head           the number of lines, and the hash of the last
<state>/privacy/releases/N     the bytes that debit N paid for
<state>/privacy/lock           held while a release is made

    debit on the disk --> noise from the operating system --> release on the disk --> its line --> sent

Trained weights follow the same path, except that they are not kept here: they wait in the device's outbox.

The debit comes first, because noise that was drawn but not paid for could be drawn again after a crash: two
noisy answers to one question average to a better one than the owner agreed to. A crash after the debit
therefore loses what was paid. No noise is ever drawn twice for one debit: a release that is sent again is the
one on the disk. Each file is replaced in one step, so that no crash leaves half a line.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from secrets import token_bytes
from typing import TypeVar

from fedclient.store.consent import Consents
from shoal.core.algorithm.asks import WholeRun
from shoal.core.errors import BadPayload, ConfigError, LedgerFault, NoConsent, OverBudget, Unprotected
from shoal.core.exchange.parts import Descriptor, Integers
from shoal.core.exchange.payload import Payload
from shoal.core.exchange.tensors import digest
from shoal.core.exchange.wire import payload_from_bytes, payload_to_bytes
from shoal.core.privacy.accountant import Lesson, Order, Poll, Share, Tally
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.cost import Cost
from shoal.core.privacy.ledger import (
    Cast,
    Counted,
    Debit,
    Entry,
    Failed,
    Head,
    Open,
    Paid,
    Release,
    Summed,
    Training,
    chosen,
    head_from,
    line_of,
    of_run,
    paid,
    read,
    released,
    spent,
    within,
)
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.noise.vote import drawn
from shoal.core.privacy.release import noisy_count, release_sums
from shoal.core.privacy.report import OF_TRAINING
from shoal.core.privacy.sums import ExactSums
from shoal.core.types import Tensors
from shoal.shell import crash
from shoal.shell.disk import lock, make_folder, storing, sweep, write

T = TypeVar("T")

DAY = 86400.0
WAIT = 2.0
"""Seconds to wait for another device that shares the ledger: it holds the lock for milliseconds."""
LEDGER, HEAD, RELEASES = "ledger.jsonl", "head", "releases"
HINT = (
    "a damaged ledger releases nothing. Restore the folder from a backup; or see what `fedclient ledger "
    "verify` reports, and move the folder away to start with nothing spent, if you can take responsibility "
    "for that"
)


class Ledger:
    """The ledger in `folder`, and the budget that its owner allows."""

    def __init__(
        self,
        folder: Path,
        budget: Budget,
        source: str = "",
        run: str = "",
        clock: Callable[[], float] = time.time,
        consents: Consents | None = None,
    ) -> None:
        """source: names where the data come from, such as their file; "": only their content counts.

        run: that asks. clock: seconds since 1970. consents: what the owner has allowed single runs.
        """
        self._folder, self._budget, self._source, self._run = folder, budget, source, run
        self._clock, self._consents = clock, consents

    def of(self, run: str) -> "Ledger":
        """The same ledger, for the tasks of a run."""
        return Ledger(self._folder, self._budget, self._source, run, self._clock, self._consents)

    @property
    def _since(self) -> float:
        return self._clock() - DAY * self._budget.window_days

    def entries(self) -> list[Entry]:
        """All entries. Raises LedgerFault if the ledger was changed or is damaged."""
        return self._read()[0]

    def verify(self) -> list[Entry]:
        """All entries, after the releases on the disk were verified too. Raises LedgerFault."""
        entries = self.entries()
        kept = {each.number for each in paid(entries) if not isinstance(each, Training)}
        for each in chosen(entries, Release):
            if each.debit in kept:
                self._bytes_of(each)
        return entries

    def release(self, order: Order, exact: Callable[[], ExactSums]) -> Descriptor:
        """See `shoal.core.privacy.accountant`. Raises OverBudget, LedgerFault, StorageFault."""
        entries = self.entries()
        if (found := self._recalled(entries, order)) is not None:
            return found
        try:
            self._check(entries, Debit.of(order, 0, 0.0))
        except OverBudget:
            # An old release is better than none. And a device that was placed as a newcomer and trains now
            # has released all samples without classes.
            found = self._recalled(entries, order, -math.inf)
            if found is None:
                found = self._recalled(entries, order.without_classes, -math.inf)
                if found is None or found.classes:  # earlier classes belong to other labels
                    raise
            return found
        sums = exact()  # the author's code may fail or hang: so before the debit, and without the lock
        with self._locked():
            entries, head = self._read()
            if (found := self._recalled(entries, order)) is not None:
                return found
            debit = Debit.of(order, len(paid(entries)) + 1, self._clock(), self._source, self._run)
            head = self._pay(debit, entries, head)
            descriptor = release_sums(sums, order.settings, order.terms, order.projector)
            crash.point("device.drawn")
            data = payload_to_bytes(Payload("descriptor", {"descriptor": descriptor}))
            self._store(debit.number, data, head)
        return descriptor

    def train(self, lesson: Lesson, work: Callable[[Entropy], Tensors]) -> Tensors:
        """See `shoal.core.privacy.accountant`. Raises OverBudget, LedgerFault, StorageFault, and as `work`
        does."""
        with self._locked():
            entries, head = self._read()
            number = len(paid(entries)) + 1
            training = Training.of(lesson, number, self._clock(), self._source, self._run)
            self._pay(training, entries, head)
        found = work(token_bytes)
        crash.point("device.drawn")
        with self._locked():
            self._append(Release(training.number, self._clock(), digest(found)), self._read()[1])
            crash.point("device.release-noted")
        return found

    def count(self, tally: Tally, exact: Callable[[], int]) -> int:
        """See `shoal.core.privacy.accountant`. Raises OverBudget, LedgerFault, StorageFault."""

        def made(number: int) -> Counted:
            return Counted.of(tally, number, self._clock(), self._source, self._run)

        return self._number(tally, made, exact, lambda value: noisy_count(value, tally.rho))

    def vote(self, poll: Poll, exact: Callable[[], Integers]) -> int:
        """See `shoal.core.privacy.accountant`. Raises OverBudget, LedgerFault, StorageFault."""

        def made(number: int) -> Cast:
            return Cast.of(poll, number, self._clock(), self._source, self._run)

        return self._number(poll, made, exact, lambda scores: drawn(scores, poll.epsilon))

    def _number(
        self,
        asked: Tally | Poll,
        made: Callable[[int], Paid],
        exact: Callable[[], T],
        noised: Callable[[T], int],
    ) -> int:
        """An earlier number for this, or else a new one. made: the debit with this number."""
        entries = self.entries()
        if (found := self._earlier(entries, asked)) is not None:
            return found
        self._check(entries, made(0))
        value = exact()  # the author's code: before the debit, and without the lock
        with self._locked():
            entries, head = self._read()
            if (found := self._earlier(entries, asked)) is not None:
                return found
            debit = made(len(paid(entries)) + 1)
            head = self._pay(debit, entries, head)
            number = noised(value)
            crash.point("device.drawn")
            self._store(debit.number, str(number).encode(), head)
        return number

    def agree(self, whole: WholeRun, data: str) -> None:
        """Keep what a run asks for in all, for its owner, before its first task. data: as in `Order`.

        Raises OverBudget where all of it does not fit, whatever this run has spent already, and NoConsent or
        Unprotected where something would leave that the owner does not allow. Raises LedgerFault,
        StorageFault.
        """
        if self._consents:
            self._consents.note(self._run, whole.facts(self._budget.delta, self._budget.group_size))
        others = [each for each in self.entries() if not (isinstance(each, Paid) and each.run == self._run)]
        if whole.cost:
            recent = within(others, data, self._source, self._since)
            what = f"all of run {self._run}"
            self._budget.check(whole.cost, recent, spent(others), Cost(), what)
        missing = [what for what in whole.asks.opened if not self._permits(what)]
        for what in missing:
            self._check_permitted(what)

    def _permits(self, what: str) -> bool:
        """Whether this may leave. If it is for the owner to say, the request is kept."""
        allowed = self._budget.allows(what)
        if allowed is None:
            return bool(self._consents and self._consents.allows(self._run, what))
        return allowed

    def unprotected(self, what: str, data: str) -> None:
        """See `shoal.core.privacy.accountant`. Raises Unprotected, LedgerFault, StorageFault."""
        self._check_permitted(what)
        if self._noted(self.entries(), what, data):
            return
        with self._locked():
            entries, head = self._read()
            if not self._noted(entries, what, data):
                self._append(Open(self._clock(), what, data), head)

    def _check_permitted(self, what: str) -> None:
        """Raises NoConsent or Unprotected."""
        allowed = self._budget.allows(what)
        if allowed is None and not self._permits(what):
            raise NoConsent(
                f"run {self._run} asks for {what}: without a privacy guarantee, and you have not consented",
                f"`fedclient consent show` lists what runs ask for, and `fedclient consent give {self._run}` "
                "allows it; privacy.allow_unprotected and privacy.allow_plain_weights in this device's "
                "settings are rules for all runs",
            )
        if allowed is False:
            training = what in OF_TRAINING
            ask, setting = (
                ("dp_epsilon", "allow_plain_weights")
                if training
                else ("privacy=balanced", "allow_unprotected")
            )
            raise Unprotected(
                f"this device releases nothing without a privacy guarantee, and the run asks for {what}",
                f"ask the run's operator for {ask}, or set privacy.{setting} in this device's settings",
            )

    def summed(self, share: Share) -> None:
        """See `shoal.core.privacy.accountant`: a line for each sum, before the update leaves. Raises
        LedgerFault, StorageFault."""
        with self._locked():
            entries, head = self._read()
            # A task that is done again after a crash gives the same bytes.
            if not any(each.cohort == share.cohort for each in chosen(entries, Summed)):
                self._append(Summed(self._clock(), self._run, **asdict(share)), head)

    def failed(self, run: str, code: str) -> None:
        """Write down that the server of this run learns of a failure. Raises LedgerFault, StorageFault."""
        with self._locked():
            self._append(Failed(self._clock(), run, code), self._read()[1])

    def _noted(self, entries: list[Entry], what: str, data: str) -> bool:
        return any((each.what, each.data) == (what, data) for each in chosen(entries, Open))

    def _check(self, entries: list[Entry], debit: Paid) -> None:
        recent = within(entries, debit.data, self._source, self._since)
        of_this_run = of_run(entries, self._run) if self._run else None
        what = "a vote" if isinstance(debit, Cast) else ""
        self._budget.check(debit.cost, recent, spent(entries), of_this_run, what)

    def _pay(self, debit: Paid, entries: list[Entry], head: Head) -> Head:
        self._check(entries, debit)
        head = self._append(debit, head)
        crash.point("device.debited")
        return head

    def _recalled(self, entries: list[Entry], order: Order, since: float | None = None) -> Descriptor | None:
        """An earlier release for such an order, by default of the present window. One that is gone from the
        disk has to be paid again."""
        found = released(entries, order, self._source, self._since if since is None else since)
        if found is None or not self._path_of(found.debit).exists():
            return None
        part = payload_from_bytes(self._bytes_of(found)).parts.get("descriptor")
        if not isinstance(part, Descriptor):
            raise BadPayload(f"{self._path_of(found.debit)} does not contain a descriptor", HINT)
        return part

    def _earlier(self, entries: list[Entry], asked: Tally | Poll) -> int | None:
        found = released(entries, asked, self._source, self._since)
        if found is None or not self._path_of(found.debit).exists():
            return None
        return int(self._bytes_of(found))

    # -- files ------------------------------------------------------------------------------------------

    def _path_of(self, debit: int) -> Path:
        return self._folder / RELEASES / str(debit)

    def _bytes_of(self, found: Release) -> bytes:
        path = self._path_of(found.debit)
        with storing(path):
            data = path.read_bytes() if path.exists() else None
        if data is None or sha256(data).hexdigest() != found.release:
            what = "is gone" if data is None else "is not what was released"
            raise LedgerFault(f"{path} {what}", "remove what is left of it; the next release is paid again")
        return data

    def _store(self, debit: int, data: bytes, head: Head) -> None:
        """Store what was released for a debit, and then the line that says so."""
        write(self._path_of(debit), data)
        crash.point("device.release-stored")
        self._append(Release(debit, self._clock(), sha256(data).hexdigest()), head)
        crash.point("device.release-noted")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from making a release. Raises ConfigError if one keeps doing so."""
        path, until = self._folder / "lock", time.monotonic() + WAIT
        with storing(path):
            make_folder(self._folder)
            while True:
                try:
                    file = lock(path)
                    break
                except ConfigError:  # a device that shares this ledger, for a moment
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.02)
        with file:
            for folder in (self._folder, self._folder / RELEASES):
                sweep(folder)
            yield

    def _read(self) -> tuple[list[Entry], Head]:
        """The head is read first: if another process appends meanwhile, there are more lines, and never
        fewer.
        """
        head_path, path = self._folder / HEAD, self._folder / LEDGER
        with storing(self._folder):
            head = head_path.read_bytes() if head_path.exists() else None
            data = path.read_bytes() if path.exists() else b""
        try:
            if head is None and data:
                raise LedgerFault("the ledger's head is missing")
            return read(data, head_from(json.loads(head)) if head is not None else Head())
        except (LedgerFault, ValueError) as error:
            message = error.message if isinstance(error, LedgerFault) else "the ledger's head cannot be read"
            raise LedgerFault(f"{path}: {message}", HINT) from None

    def _append(self, entry: Entry, head: Head) -> Head:
        """Add an entry. On return it and the new head are on the disk. head: of the ledger as it is."""
        path = self._folder / LEDGER
        if head.lines == 0:  # from now on, a ledger without a head has lost it
            write(self._folder / HEAD, json.dumps(asdict(head)).encode())
        with storing(path):
            before = path.read_bytes() if path.exists() else b""
        line = line_of(entry, head.last)
        write(path, before + line)
        head = Head(head.lines + 1, sha256(line[:-1]).hexdigest())
        write(self._folder / HEAD, json.dumps(asdict(head)).encode())
        return head
