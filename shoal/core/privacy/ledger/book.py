"""All entries of a ledger, with their sums: what was spent, what can be given again, what is reserved.

Sums grow with each entry, so that most questions look at few entries; only sums over a window look at all of
them, and a search for an earlier release at all payments.

**Reservations.** Before its first task a run reserves what all of it costs. Until it has spent that, no other
run can; so two runs of which each fits cannot both begin and then fail in the middle. What is held for a run
is what each of its devices has reserved less what that device has spent, and never below nothing: a payment
turns a reserved part into a spent one, and counts once; and a device that repeats rounds does not spend what
another one, which shares the ledger, has reserved for the same run. A reservation changes only who may spend:
what a limit allows is still compared with what was paid, so the proof in docs/proofs.md does not depend on
it. It is given back when the run is over, or when the owner refuses the run; and it lapses when the run has
spent nothing for a whole window, since a server that never returns cannot say that its run is over. What is
dated after now, by a clock that was ahead, has lapsed as well, or it would be held until then: a run that
still needs it reserves it again.
"""

import math
from collections.abc import Iterable

from shoal.core.privacy.cost import Cost, total
from shoal.core.privacy.ledger.entries import (
    Debit,
    Entry,
    Failed,
    FailedBefore,
    GivenBack,
    Open,
    Release,
    Reserved,
    Summed,
)
from shoal.core.privacy.payment import Payment

NOTHING = Cost()


class Book:
    """entries: in order. spent: by one sample, on all that was paid. failures: how many lines are of one."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.spent = NOTHING
        self.failures = 0
        self._paid: list[Debit] = []
        self._releases: dict[int, Release] = {}
        self._of_run: dict[str, Cost] = {}
        self._paid_by: dict[tuple[str, str], Cost] = {}
        self._dates: dict[str, list[float]] = {}
        self._reserved: dict[str, dict[str, Reserved]] = {}
        self._reservations: list[Reserved] = []
        self._open: set[tuple[str, str]] = set()
        self._sums: dict[tuple[str, str], str] = {}

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> "Book":
        found = cls()
        for entry in entries:
            found.add(entry)
        return found

    def add(self, entry: Entry) -> None:
        """Raises ValueError for an entry that cannot stand after the others."""
        if isinstance(entry, Debit):
            self._pay(entry)
        elif isinstance(entry, Release):
            if not 1 <= entry.debit <= len(self._paid) or entry.debit in self._releases:
                raise ValueError(f"debit {entry.debit} does not exist or has a release already")
            self._releases[entry.debit] = entry
        elif isinstance(entry, Open):
            self._open.add((entry.what, entry.data))
        elif isinstance(entry, Failed):
            self.failures += 1
        elif isinstance(entry, Summed):
            self._sums[entry.update.cohort, entry.holder] = entry.update.masked
        elif isinstance(entry, Reserved):
            if not entry.cost:
                raise ValueError("nothing is reserved")
            self._reserved.setdefault(entry.run, {})[entry.holder] = entry
            self._reservations.append(entry)
        elif isinstance(entry, GivenBack):
            self._reserved.get(entry.run, {}).pop(entry.holder, None)
        self.entries.append(entry)

    def _pay(self, entry: Debit) -> None:
        cost = entry.payment.cost
        if entry.number != self.next or not cost:
            raise ValueError(f"its number is {entry.number} and its cost {cost}")
        self.spent += cost
        self._of_run[entry.run] = self.of_run(entry.run) + cost
        key = entry.run, entry.holder
        self._paid_by[key] = self._paid_by.get(key, NOTHING) + cost
        self._dates.setdefault(entry.run, []).append(entry.at)
        self._paid.append(entry)

    @property
    def next(self) -> int:
        """The number of the next payment."""
        return len(self._paid) + 1

    # -- sums, for one sample ---------------------------------------------------------------------------

    def of_run(self, run: str) -> Cost:
        """What one run has spent."""
        return self._of_run.get(run, NOTHING)

    def paid_by(self, run: str, holder: str) -> Cost:
        """What one device has paid for a run."""
        return self._paid_by.get((run, holder), NOTHING)

    @property
    def runs(self) -> list[str]:
        """The runs that have spent or reserved something, in order."""
        return [run for run in dict.fromkeys([*self._of_run, *self._reserved]) if run]

    def recent(self, source: str, since: float, now: float) -> list[tuple[float, Debit]]:
        """What was paid for a source after `since`, and when, whatever its data were then: what is left does
        not depend on whether they have changed.

        A payment is not older than the lines before it, whatever its own date: machines without a clock of
        their own begin in 1970, until they have heard the time. Lines from after `now` say nothing of that,
        as a clock may also have been ahead.
        """
        latest, found = -math.inf, []
        for each in self.entries:
            if isinstance(each, FailedBefore):
                continue
            if each.at <= now:
                latest = max(latest, each.at)
            if isinstance(each, Debit) and each.source == source and (at := max(each.at, latest)) > since:
                found.append((at, each))
        return found

    def within(self, source: str, since: float, now: float) -> Cost:
        """The cost of what is recent."""
        return total(each.payment.cost for _, each in self.recent(source, since, now))

    # -- reservations -----------------------------------------------------------------------------------

    def reserved(self, run: str, holder: str | None = None) -> Cost:
        """What a run has reserved in all, also the part that it has spent; of one device or of all."""
        found = self._reserved.get(run, {})
        return total(each.cost for key, each in found.items() if holder in (None, key))

    def holds(self, holder: str) -> list[str]:
        """The runs for which this device has a reservation."""
        return [run for run, found in self._reserved.items() if holder in found]

    def reservations(self, holder: str, since: float, now: float = math.inf, run: str | None = None) -> int:
        """How many reservations this device has written down after `since`, for one run or for all."""
        return sum(
            each.holder == holder and since < each.at <= now and run in (None, each.run)
            for each in self._reservations
        )

    def held(self, since: float, now: float = math.inf, but: str = "") -> Cost:
        """What is kept for runs, other than `but`, that have reserved or paid something after `since`."""
        return total(self.held_for(run, since, now) for run in self._reserved if run != but)

    def held_for(self, run: str, since: float, now: float = math.inf, but: str | None = None) -> Cost:
        """What is kept for a run: what each device, other than `but`, has reserved for it and not yet
        spent."""
        return self.rest(run, but) if self.is_active(run, since, now) else NOTHING

    def rest(self, run: str, but: str | None = None) -> Cost:
        """The same, whether or not the reservations have lapsed."""
        found = self._reserved.get(run, {}).items()
        return total(each.cost - self.paid_by(run, key) for key, each in found if key != but)

    def is_active(self, run: str, since: float, now: float = math.inf) -> bool:
        """Whether a run has reserved or paid something after `since`, and up to now."""
        reserved = (each.at for each in self._reserved.get(run, {}).values())
        return any(since < at <= now for at in (*reserved, *reversed(self._dates.get(run, ()))))

    # -- what is there already --------------------------------------------------------------------------

    def is_open(self, what: str, data: str) -> bool:
        """Whether a line says that this has left without a guarantee."""
        return (what, data) in self._open

    def awaits(self, debit: Debit) -> bool:
        """Whether this was paid at that time, and no line says yet what was released for it."""
        return debit in self._paid[debit.number - 1 : debit.number] and debit.number not in self._releases

    def masked(self, cohort: str, holder: str) -> str | None:
        """The hash of the masked update that a device has sent for the sum over this cohort; None if it has
        sent none."""
        return self._sums.get((cohort, holder))

    def paid_for(self, release: Release) -> Debit:
        """What was paid for a release."""
        return self._paid[release.debit - 1]

    def released(
        self, asked: Payment, source: str = "", since: float = -math.inf, in_part: bool = False
    ) -> Release | None:
        """Find the latest release that answers this (`Payment.answers`).

        source: of the data. since: releases that were paid before this are not used.
        """
        for each in reversed(self._paid):
            usable = each.source == source and each.at > since and each.number in self._releases
            if usable and each.payment.answers(asked, in_part):
                return self._releases[each.number]
        return None
