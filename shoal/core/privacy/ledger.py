"""The lines of a device's ledger: their content, their chain of hashes, and the sum of their costs.

    {"entry": "debit", "number": 1, "at": ..., "purpose": ..., "rho": ..., ..., "previous": SHA-256}
    {"entry": "release", "debit": 1, "at": ..., "release": SHA-256, "previous": SHA-256}
    {"entry": "training", "number": 2, "at": ..., "purpose": ..., "curve": [...], ..., "previous": SHA-256}
    {"entry": "count" or "vote", "number": 3, "at": ..., "purpose": ..., ..., "previous": SHA-256}
    {"entry": "failure", "at": ..., "run": ..., "code": ..., "previous": SHA-256}
    {"entry": "sum", "at": ..., "run": ..., "cohort": SHA-256, "devices": ..., ..., "previous": SHA-256}

Each line carries the SHA-256 of the line before it (64 zeros in the first line). The head, which is stored
beside the ledger, has that of the last line. So every line that was changed, removed or moved is found.
Anyone who can write both files can invent another history: a ledger protects against accidents and careless
edits, and what the server has recorded shows the rest. This module touches no files.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any, TypeVar

from shoal.core.errors import LedgerFault
from shoal.core.privacy.accountant import Lesson, Order, Poll, Tally
from shoal.core.privacy.cost import Cost, rho_of, total
from shoal.core.privacy.noise import vote

T = TypeVar("T")

LATER = ("source", "run")
NOTHING = "0" * 64
"""The hash before the first line."""


@dataclass(frozen=True)
class Debit:
    """A release that is paid for, even if it never leaves. number: 1, 2, ... over debits and trainings.

    at: seconds since 1970, by the device's clock. purpose to group_size: what was requested, and for what.
    source: name of the data source, "" in ledgers of earlier versions. run: that asked for it.
    delta: as requested; sigma satisfies it, and a smaller one where there are many samples. classes: the
    number of class rows in the release. rho: the cost for one sample. The hashes are those of `Order`.
    """

    number: int
    at: float
    purpose: str
    mode: str
    epsilon: float
    delta: float
    group_size: int
    classes: int
    sigma: float
    rho: float
    encoder: str
    projector: str
    data: str
    content: str
    source: str = ""
    run: str = ""

    @classmethod
    def of(cls, order: Order, number: int, at: float, source: str = "", run: str = "") -> "Debit":
        asked, agreed = order.settings, order.terms
        return cls(
            number,
            at,
            order.purpose,
            asked.mode,
            asked.epsilon,
            asked.delta,
            asked.group_size,
            agreed.classes,
            agreed.sigma,
            agreed.rho,
            order.encoder,
            order.projector,
            order.data,
            order.content,
            source,
            run,
        )

    @property
    def cost(self) -> Cost:
        return Cost(self.rho)

    def fits(self, order: Order) -> bool:
        """Whether the release for this debit can be used for the order. Where the order has no classes, a
        release with classes can be used too, with any labels. A release of a named source is used whatever
        has become of its data since, so that no answer tells whether they have changed."""
        again = Debit.of(order, self.number, self.at, self.source, self.run)
        indifferent: dict[str, Any] = {"purpose": ""}
        if self.source:
            indifferent |= {"data": "", "content": ""}
        if not order.terms.classes:
            indifferent |= {"classes": 0, "content": ""}
        return asdict(again) | indifferent == asdict(self) | indifferent


@dataclass(frozen=True)
class Training:
    """A training that is paid for, even if its result never leaves. number, at, purpose, data: see `Debit`.

    clip to steps: its terms (`shoal.core.privacy.dpsgd`). curve: its cost for one sample
    (`shoal.core.privacy.cost`).
    """

    number: int
    at: float
    purpose: str
    clip: float
    noise: float
    rate: float
    steps: int
    curve: tuple[float, ...]
    data: str
    source: str = ""
    run: str = ""

    @classmethod
    def of(cls, lesson: Lesson, number: int, at: float, source: str = "", run: str = "") -> "Training":
        terms = lesson.terms
        return cls(
            number,
            at,
            lesson.purpose,
            terms.clip,
            terms.noise,
            terms.rate,
            terms.steps,
            terms.cost.curve,
            lesson.data,
            source,
            run,
        )

    @property
    def cost(self) -> Cost:
        return Cost(curve=tuple(self.curve))


@dataclass(frozen=True)
class Counted:
    """A count with noise that is paid for, even if it never leaves. The fields are those of `Tally`."""

    number: int
    at: float
    purpose: str
    rho: float
    model: str
    part: str
    data: str
    source: str = ""
    run: str = ""

    @classmethod
    def of(cls, tally: Tally, number: int, at: float, source: str = "", run: str = "") -> "Counted":
        return cls(number, at, tally.purpose, tally.rho, tally.model, tally.part, tally.data, source, run)

    @property
    def cost(self) -> Cost:
        return Cost(self.rho)

    def fits(self, tally: Tally) -> bool:
        """Whether this count answers the same question; see `Debit.fits`."""
        again = Counted.of(tally, self.number, self.at, self.source, self.run)
        return self == (replace(again, data=self.data) if self.source else again)


@dataclass(frozen=True)
class Cast:
    """A vote that is paid for, even if it never leaves. The fields are those of `Poll`; curve is its cost."""

    number: int
    at: float
    purpose: str
    epsilon: float
    curve: tuple[float, ...]
    question: str
    data: str
    source: str = ""
    run: str = ""

    @classmethod
    def of(cls, poll: Poll, number: int, at: float, source: str = "", run: str = "") -> "Cast":
        cost = vote.cost(poll.epsilon).curve
        return cls(number, at, poll.purpose, poll.epsilon, cost, poll.question, poll.data, source, run)

    @property
    def cost(self) -> Cost:
        return Cost(curve=tuple(self.curve))

    def fits(self, poll: Poll) -> bool:
        """Whether this vote answers the same question; see `Debit.fits`."""
        same = (self.epsilon, self.question) == (poll.epsilon, poll.question)
        return same and (self.source != "" or self.data == poll.data)


@dataclass(frozen=True)
class Release:
    """What was released or trained for a debit. release: the SHA-256 of its bytes.

    The bytes of a descriptor stay on the disk. Weights wait in the outbox until the server has them.
    """

    debit: int
    at: float
    release: str


@dataclass(frozen=True)
class Open:
    """Something that left without a guarantee. It is recorded once for each version of the data."""

    at: float
    what: str
    data: str


@dataclass(frozen=True)
class Failed:
    """A task that failed, which the server of this run learned, with this code."""

    at: float
    run: str
    code: str


@dataclass(frozen=True)
class Summed:
    """An update that left under masks. The fields are those of `Share`.

    It has no cost: that the other devices of the cohort add their part of the noise is not for this device to
    see.
    """

    at: float
    run: str
    cohort: str
    devices: int
    fewest: int
    clip: float
    noise: float
    data: str

    @property
    def rho(self) -> float:
        """What it costs all samples of the device together, if the others add their noise; infinite without
        noise."""
        return rho_of(self.noise) if self.noise else math.inf


Paid = Debit | Training | Counted | Cast
Entry = Paid | Release | Open | Failed | Summed
_KINDS: Mapping[str, type[Entry]] = {
    "debit": Debit,
    "training": Training,
    "count": Counted,
    "vote": Cast,
    "release": Release,
    "open": Open,
    "failure": Failed,
    "sum": Summed,
}
_NAMES = {cls: name for name, cls in _KINDS.items()}


@dataclass(frozen=True)
class Head:
    """The end of a ledger: the number of lines, and the hash of the last one."""

    lines: int = 0
    last: str = NOTHING


def line_of(entry: Entry, previous: str) -> bytes:
    """Encode an entry as a line, with its line end."""
    fields = {"entry": _NAMES[type(entry)], **asdict(entry), "previous": previous}
    for name in LATER:  # what earlier versions lack is left out where it is empty, so their lines stay valid
        if fields.get(name) == "":
            del fields[name]
    return json.dumps(fields, allow_nan=False).encode() + b"\n"


def read(data: bytes, head: Head) -> tuple[list[Entry], Head]:
    """Read the entries of a ledger, and compute its head.

    The ledger may have more lines than `head` says, after a crash or while another process writes. Raises
    LedgerFault, which names the line.
    """
    if data and not data.endswith(b"\n"):
        raise LedgerFault("the ledger's last line is cut off")
    found: list[Entry] = []
    hashes = [NOTHING]
    for number, line in enumerate(data.splitlines(), 1):
        try:
            fields = json.loads(line)
            previous, kind = fields.pop("previous"), _KINDS[fields.pop("entry")]
            entry = kind(**fields)
            _check(entry, found)
            whole = line_of(entry, previous) == line + b"\n"
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
            raise LedgerFault(f"line {number} of the ledger cannot be read: {error}") from None
        if previous != hashes[-1] or not whole:
            raise LedgerFault(f"line {number} of the ledger does not follow from the line before it")
        found.append(entry)
        hashes.append(sha256(line).hexdigest())
    if len(found) < head.lines:
        raise LedgerFault(f"the ledger has {len(found)} lines, and there were {head.lines}")
    if hashes[head.lines] != head.last:
        raise LedgerFault(f"line {head.lines} of the ledger is not the one that was written")
    return found, Head(len(found), hashes[-1])


def _check(entry: Entry, before: Sequence[Entry]) -> None:
    """Raises ValueError for an entry that cannot stand after the others."""
    if isinstance(entry, Paid) and (entry.number != len(paid(before)) + 1 or not entry.cost):
        raise ValueError(f"its number is {entry.number} and its cost {entry.cost}")
    if isinstance(entry, Debit) and not math.isclose(entry.rho, rho_of(entry.sigma), rel_tol=1e-9):
        raise ValueError(f"noise of {entry.sigma} does not cost a rho of {entry.rho}")
    if isinstance(entry, Release) and (
        entry.debit not in {each.number for each in paid(before)}
        or entry.debit in {each.debit for each in chosen(before, Release)}
    ):
        raise ValueError(f"debit {entry.debit} does not exist or has a release already")


def chosen(entries: Iterable[Entry], kind: type[T]) -> list[T]:
    """Select the entries of one kind."""
    return [entry for entry in entries if isinstance(entry, kind)]


def paid(entries: Iterable[Entry]) -> list[Paid]:
    """Select all entries that have a cost."""
    return [entry for entry in entries if isinstance(entry, Paid)]


def released(
    entries: Sequence[Entry], order: Order | Tally | Poll, source: str = "", since: float = -math.inf
) -> Release | None:
    """Find the latest release that can be used for an order, a count or a vote.

    source: of the data now. since: releases of a named source that were paid before this are not used.
    """
    by_debit = {each.debit: each for each in chosen(entries, Release)}
    fitting = [
        each
        for each in paid(entries)
        if each.number in by_debit and each.source in ("", source) and _fits(each, order)
        if not each.source or each.at > since
    ]
    return by_debit[fitting[-1].number] if fitting else None


def _fits(made: Paid, order: Order | Tally | Poll) -> bool:
    if isinstance(made, Debit):
        return isinstance(order, Order) and made.fits(order)
    if isinstance(made, Counted):
        return isinstance(order, Tally) and made.fits(order)
    return isinstance(made, Cast) and isinstance(order, Poll) and made.fits(order)


def spent(entries: Iterable[Entry], data: str | None = None) -> Cost:
    """Sum the cost for one sample, over all versions of the data or on one."""
    return total(each.cost for each in paid(entries) if data in (None, each.data))


def within(entries: Iterable[Entry], data: str, source: str, since: float) -> Cost:
    """Sum the cost for one sample of what was paid for these data after `since`.

    For a named source, everything counts that was paid for it, whatever its data were, and what earlier
    versions paid; so what is left does not depend on whether the data have changed.
    """
    return total(
        each.cost
        for each in paid(entries)
        if each.at > since and (each.source in ("", source) if source else each.data == data)
    )


def of_run(entries: Iterable[Entry], run: str) -> Cost:
    """Sum the cost for one sample of what one run has asked for."""
    return total(each.cost for each in paid(entries) if each.run == run)


def versions(entries: Iterable[Entry]) -> list[str]:
    """List the versions of the data from which anything was released, in order."""
    return list(dict.fromkeys(each.data for each in entries if isinstance(each, Paid | Open)))


def head_from(fields: Any) -> Head:
    """Read a head from its JSON fields. Raises LedgerFault."""
    try:
        head = Head(**fields)
        if type(head.lines) is int and head.lines >= 0 and type(head.last) is str:
            return head
    except TypeError:
        pass
    raise LedgerFault("the ledger's head cannot be read")
