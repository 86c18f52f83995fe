"""The device's ledger of what it released with a guarantee, and the only way to make such a release.

    debit on the disk --> noise from the operating system --> release on the disk --> its line --> sent

Trained weights follow the same path, except that they are not kept here: they wait in the device's outbox.

The debit comes first, because noise that was drawn but not paid for could be drawn again after a crash: two
noisy answers to one question average to a better one than the owner agreed to. A crash after the debit
therefore loses what was paid. No noise is ever drawn twice for one debit: a release that is sent again is the
one on the disk.

A full disk loses nothing that was paid. Nothing is paid where there is no room for what it pays for; and what
it refuses all the same stays in memory and is stored later, without another debit (`unsettled`).

Before the first task of a run, what all of it costs is reserved (`Ledger.agree`; what that means is in
`shoal.core.privacy.ledger.book`). Check and line are under one lock, so of two runs that each fit, but not
together, one is refused.
"""

import math
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from secrets import token_bytes
from typing import Any, TypeVar, cast

from fedclient.store.consent import Consents
from fedclient.store.failures import Failures
from fedclient.store.ledger_file import LedgerFile
from fedclient.store.unsettled import Unsettled
from shoal.core.errors import DeviceFault, DiskFull, NoConsent, OverBudget, Unprotected
from shoal.core.exchange.payload import Payload
from shoal.core.exchange.tensors import digest
from shoal.core.exchange.wire import payload_from_bytes, payload_to_bytes
from shoal.core.privacy.accountant import MaskedUpdate
from shoal.core.privacy.asks import WholeRun
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.cost import Cost
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
    chosen,
    paid,
)
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.payment import VOTE, Payment
from shoal.core.privacy.report import OF_TRAINING, OPEN
from shoal.core.types import RunId, Tensors
from shoal.shell import crash

T = TypeVar("T")
R = TypeVar("R")

DAY = 86400.0
CHANGES, RESERVATIONS = 20, 1000
"""How often a run, and how often all runs of a device, may reserve something in one window. The terms of an
honest run change seldom; a server that alternates between two would fill the disk with lines."""


class Ledger:
    """The ledger in `folder`, and the budget that its owner allows."""

    def __init__(
        self,
        folder: Path,
        budget: Budget,
        source: str = "",
        clock: Callable[[], float] = time.time,
        consents: Consents | None = None,
    ) -> None:
        """source: names where the data come from, such as their file.

        clock: seconds since 1970. consents: what the owner has allowed single runs; they also name the
        device, of those that share a ledger.
        """
        self._file, self._budget, self._source, self._run = LedgerFile(folder), budget, source, ""
        self._clock, self._consents = clock, consents
        self._failures = Failures(self._file, folder)
        self.unsettled = Unsettled(self._file, clock)  # one for all runs, see `of`

    def of(self, run: str) -> "Ledger":
        """The same ledger, for the tasks of a run."""
        found = copy(self)
        found._run = run
        return found

    @property
    def _since(self) -> float:
        return self._window[0]

    @property
    def _window(self) -> tuple[float, float]:
        """From when on a payment counts as recent, and now."""
        now = self._clock()
        return now - DAY * self._budget.window_days, now

    @property
    def _holder(self) -> str:
        return self._consents.holder if self._consents else ""

    def entries(self) -> list[Entry]:
        """All lines, and then the failures that have none. Raises LedgerFault if the ledger was changed or is
        damaged."""
        return [*self._file.read().entries, *self._failures.beside()]

    def verify(self) -> list[Entry]:
        """All lines, after the releases on the disk were verified too. Raises LedgerFault."""
        entries = list(self._file.read().entries)
        kept = {each.number for each in paid(entries) if each.payment.question}
        for each in chosen(entries, Release):
            if each.debit in kept:
                self._file.bytes_of(each)
        return entries

    # -- what is paid for -------------------------------------------------------------------------------

    def pay(self, payment: Payment, exact: Callable[[], T], noised: Callable[[T, Entropy], R]) -> R:
        """See `shoal.core.privacy.accountant`. Raises OverBudget, LedgerFault, StorageFault, and as `exact`
        and `noised` do.

        What can be given again is on the disk on return. Trained weights may not leave before
        `unsettled.settle`: a disk that is full by then costs no second debit.
        """

        def again(found: Release) -> R:
            return cast(R, payload_from_bytes(self._file.bytes_of(found)).parts[payment.kind])

        self.unsettled.settle()
        book = self._file.read()
        if (found := self._released(book, payment, self._since)) is not None:
            return again(found)
        try:
            self._check(book, payment)
        except OverBudget:
            if (found := self._released_ever(book, payment)) is None:
                raise
            return again(found)
        value = exact()  # the author's code may fail or hang: so before the debit, and without the lock
        with self._file.locked() as book:
            if (found := self._released(book, payment, self._since)) is not None:
                return again(found)
            self._check(book, payment)
            self._file.check_room()
            debit = Debit(book.next, self._clock(), payment, self._source, self._run, self._holder)
            self._file.append(debit)
            crash.point("device.debited")
            if payment.question:  # no one who shares the ledger may pay for the same before it is stored
                answer = noised(value, token_bytes)
                crash.point("device.drawn")
                stored: Any = {payment.kind: answer}
                self.unsettled.store(book, debit, payload_to_bytes(Payload(payment.kind, stored)))
                return answer
        answer = noised(value, token_bytes)  # training takes long, so without the lock
        crash.point("device.drawn")
        self.unsettled.add(debit, digest(cast(Tensors, answer)))
        with suppress(DiskFull):
            self.unsettled.settle()
        return answer

    # -- what a run may do ------------------------------------------------------------------------------

    def agree(self, whole: WholeRun, data: str) -> None:
        """Keep what a run asks for in all, for its owner, before its first task, and reserve what it costs.
        data: as in `Payment`. Where this is reserved already, nothing happens. A description that an
        earlier run has paid for costs nothing again.

        Raises OverBudget where what the run has not spent yet does not fit, and NoConsent or Unprotected
        where something would leave that the owner does not allow. Raises LedgerFault, StorageFault.
        """
        book = self._file.read()
        whole = self._without_what_is_released(book, whole)
        if self._consents:
            if whole.asks.noise < self._announced_noise:  # its owner was shown an epsilon that is too low now
                self._consents.ask_again(self._run, OPEN["summed"])
            self._consents.note(self._run, whole.facts(self._budget.delta, self._budget.group_size))
        reserved = not whole.cost or self._has_reserved(book, whole.cost)
        if not reserved:
            self._check_whole(book, whole.cost)
        refused = [what for what in whole.asks.in_the_open if not self._permits(what)]
        missing = [what for what in refused if what != OPEN["changes"]]  # see `tells`
        for what in missing:
            self._check_permitted(what)
        if not reserved and self._run:
            with self._file.locked() as book:  # another run may have come first
                self._check_changes(book)
                self._check_whole(book, whole.cost)
                found = Reserved(self._clock(), self._run, whole.cost, data, self._source, self._holder)
                self._file.append(found)
                crash.point("device.reserved")

    def _without_what_is_released(self, book: Book, whole: WholeRun) -> WholeRun:
        """The same at less cost, where `pay` will give its description again: an earlier one of this
        window, or any where there is no room for another one. What this run has paid itself counts with the
        rest of what it pays."""
        if whole.description is None:
            return whole
        rest = replace(whole, cost=whole.cost - whole.description.cost)
        if (found := self._released(book, whole.description, self._since)) is not None:
            made = book.paid_for(found)
            return whole if (made.run, made.holder) == (self._run, self._holder) else rest
        try:
            self._check_whole(book, whole.cost)
        except OverBudget:
            return rest if self._released_ever(book, whole.description) else whole
        return whole

    def _has_reserved(self, book: Book, cost: Cost) -> bool:
        """Whether this is reserved, and has not lapsed. What was spent since makes no difference."""
        active = book.is_active(self._run, *self._window)
        return active and book.reserved(self._run, self._holder) == cost

    def _check_whole(self, book: Book, cost: Cost) -> None:
        """Raises OverBudget unless there is room for what would be held for this device in this run then: its
        cost less what the device has paid, beside what is held for others."""
        before, rest = book.of_run(self._run), cost - book.paid_by(self._run, self._holder)
        if rest:
            what = f"{'the rest' if before else 'all'} of run {self._run}"
            others = book.held(*self._window, but=self._run), book.rest(self._run, but=self._holder)
            recent = book.within(self._source, *self._window)
            self._budget.check(rest, recent, book.spent, before, what, *others)

    def _check_changes(self, book: Book) -> None:
        """Raises OverBudget where a server has had too much written down: each reservation is a line."""
        for run, most in ((self._run, CHANGES), (None, RESERVATIONS)):
            if book.reservations(self._holder, *self._window, run) >= most:
                raise OverBudget(
                    f"within {self._budget.window_days:g} days {most} reservations were made for "
                    f"{f'run {run}' if run else 'the runs of this device'}, and no more are",
                    "ask the operator to leave the parameters of a run as they are, and to list runs until "
                    "they are over",
                )

    def give_back(self, run: RunId) -> None:
        """Give back what this device has reserved for a run, as far as it is not spent. Raises LedgerFault,
        StorageFault."""
        self._give_back(lambda each: each == run)

    def keep_only(self, runs: Collection[RunId]) -> None:
        """Give back what this device has reserved for all other runs: they are over. Raises LedgerFault,
        StorageFault."""
        self._give_back(lambda each: each not in runs)

    def _give_back(self, over: Callable[[RunId], bool]) -> None:
        if any(map(over, self._file.read().holds(self._holder))):  # else nothing is locked or written
            with self._file.locked() as book:
                for run in filter(over, book.holds(self._holder)):
                    self._file.append(GivenBack(self._clock(), run, self._holder))
                    crash.point("device.given-back")

    def check_not_refused(self) -> None:
        """Raises NoConsent for a run that its owner has refused."""
        if self._consents:
            self._consents.check_not_refused(self._run)

    def _permits(self, what: str) -> bool:
        """Whether this may leave. If it is for the owner to say, the request is kept."""
        allowed = self._budget.allows(what)
        if allowed is None:
            return bool(self._consents and self._consents.allows(self._run, what))
        return allowed

    def unprotected(self, what: str, data: str) -> None:
        """See `shoal.core.privacy.accountant`. Raises Unprotected, LedgerFault, StorageFault."""
        self._check_permitted(what)
        if self._file.read().is_open(what, data):
            return
        with self._file.locked() as book:
            if not book.is_open(what, data):
                self._file.append(Open(self._clock(), what, data))

    def tells(self, what: str, data: str) -> bool:
        """Whether the owner lets this leave without a guarantee, where a run can do without it. Then it is
        written down as `unprotected` does."""
        if not self._permits(what):
            return False
        self.unprotected(what, data)
        return True

    def _check_permitted(self, what: str) -> None:
        """Raises NoConsent or Unprotected."""
        allowed = self._budget.allows(what)
        if allowed is None and not self._permits(what):
            raise NoConsent(
                f"run {self._run} asks for {what}: without a privacy guarantee, and you have not consented",
                f"`fedclient consent` lists what runs ask for, and `fedclient consent give {self._run}` "
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

    def summed(self, update: MaskedUpdate) -> None:
        """See `shoal.core.privacy.accountant`: a line for each sum, before the update leaves.

        Raises NoConsent for less noise than the run has announced; DeviceFault, LedgerFault, StorageFault.
        """
        if update.noise < (announced := self._announced_noise):
            raise NoConsent(
                f"run {self._run} has announced noise of {announced:g} in its sums of updates, and asks for "
                f"{update.noise:g}",
                f"`fedclient consent revoke {self._run}` refuses the run; ask its operator",
            )
        with self._file.locked() as book:
            known = book.masked(update.cohort, self._holder)
            if known is None:
                self._file.append(Summed(self._clock(), self._run, update, self._holder))
            elif known != update.masked:  # a task that is done again after a crash gives the same bytes
                raise DeviceFault(
                    "another update has left for this sum already, so this device has no part in it any more",
                    "nothing has to be done: the next round has a new sum",
                )

    @property
    def _announced_noise(self) -> float:
        """In the sums of masked updates, as the owner is shown it; 0 for none."""
        known = self._consents.terms().get(self._run, {}).get("noise") if self._consents else None
        return float(known) if isinstance(known, int | float) else 0.0

    def failed(self, run: str, code: str) -> None:
        """Write down that the server of this run learns of a failure. Raises LedgerFault, StorageFault."""
        self._failures.add(Failed(self._clock(), run, code))

    # -- the budget, and the files ----------------------------------------------------------------------

    def _check(self, book: Book, payment: Payment) -> None:
        """Raises OverBudget."""
        recent = book.within(self._source, *self._window)
        of_this_run = book.of_run(self._run) if self._run else None
        what = "a vote" if payment.kind == VOTE else ""
        run, window = self._run, self._window
        others = book.held(*window, but=run), book.held_for(run, *window, but=self._holder)
        self._budget.check(payment.cost, recent, book.spent, of_this_run, what, *others)

    def _released(self, book: Book, asked: Payment, since: float, in_part: bool = False) -> Release | None:
        """What answers this already. One that is gone from the disk has to be paid again."""
        found = book.released(asked, self._source, since, in_part)
        return found if found and self._file.path_of(found.debit).exists() else None

    def _released_ever(self, book: Book, asked: Payment) -> Release | None:
        """An old release is better than none. And a device that was placed as a newcomer and trains now has
        released all samples without classes; but earlier classes belong to other labels."""
        whole = self._released(book, asked, -math.inf)
        return whole or self._released(book, asked, -math.inf, in_part=True)
