"""The lines of a device's ledger: what they say, how they hang together, and what they add up to. No files.

    {"entry": "debit", "number": 1, "at": ..., "purpose": ..., "rho": ..., ..., "previous": SHA-256}
    {"entry": "release", "debit": 1, "at": ..., "release": SHA-256, "previous": SHA-256}
    {"entry": "training", "number": 2, "at": ..., "purpose": ..., "curve": [...], ..., "previous": SHA-256}

Each line carries the SHA-256 of the bytes of the line before it (64 zeros in the first), and the head, which
is kept beside the ledger, that of the last line. So whatever is changed, taken away or moved is found. Who
can write both files can make up another history: a ledger is proof against accidents and careless hands, and
the server's mirror shows the rest.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, TypeVar

from shoal.core.errors import LedgerFault
from shoal.core.privacy.accountant import Lesson, Order
from shoal.core.privacy.cost import Cost, rho_of, total

T = TypeVar("T")

NOTHING = "0" * 64
"""The hash before the first line."""


@dataclass(frozen=True)
class Debit:
    """A release that is paid for, whatever becomes of it. number: 1, 2, ... over all that is paid for.

    at: seconds since 1970, by the device's clock. purpose to group_size: what was asked, and for what.
    delta: as asked; sigma is enough for it, and for less where there are many samples. classes: rows of
    classes in the release. rho: cost for one sample. The hashes are those of `Order`.
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

    @classmethod
    def of(cls, order: Order, number: int, at: float) -> "Debit":
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
        )

    @property
    def cost(self) -> Cost:
        return Cost(self.rho)

    def fits(self, order: Order) -> bool:
        """Whether what was released for this debit is what is ordered, or tells it too: where no classes are
        asked for, a release with classes does, whatever the labels were."""
        again = Debit.of(order, self.number, self.at)
        indifferent = {"purpose": ""} if order.terms.classes else {"purpose": "", "classes": 0, "content": ""}
        return asdict(again) | indifferent == asdict(self) | indifferent


@dataclass(frozen=True)
class Training:
    """Training that is paid for, whatever becomes of it. number, at, purpose, data: as in `Debit`.

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

    @classmethod
    def of(cls, lesson: Lesson, number: int, at: float) -> "Training":
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
        )

    @property
    def cost(self) -> Cost:
        return Cost(curve=tuple(self.curve))


@dataclass(frozen=True)
class Release:
    """What was released for a debit, or trained: `release` is the SHA-256 of its bytes.

    Those of a descriptor stay on the disk. Weights wait in the outbox until the server has them.
    """

    debit: int
    at: float
    release: str


@dataclass(frozen=True)
class Open:
    """Something left without a guarantee. It is noted once for each version of the data."""

    at: float
    what: str
    data: str


Paid = Debit | Training
Entry = Paid | Release | Open
_KINDS: Mapping[str, type[Entry]] = {
    "debit": Debit,
    "training": Training,
    "release": Release,
    "open": Open,
}
_NAMES = {cls: name for name, cls in _KINDS.items()}


@dataclass(frozen=True)
class Head:
    """How many lines there are, and the hash of the last one."""

    lines: int = 0
    last: str = NOTHING


def line_of(entry: Entry, previous: str) -> bytes:
    """The line of an entry, with its end."""
    fields = {"entry": _NAMES[type(entry)], **asdict(entry), "previous": previous}
    return json.dumps(fields, allow_nan=False).encode() + b"\n"


def read(data: bytes, head: Head) -> tuple[list[Entry], Head]:
    """The entries of a ledger, and the head that belongs to it.

    The ledger may have more lines than `head` says: a crash, or another process, came in between.
    Raises LedgerFault, naming the line.
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
        raise ValueError(f"nothing is to be released for debit {entry.debit}")


def chosen(entries: Iterable[Entry], kind: type[T]) -> list[T]:
    """Those of one kind."""
    return [entry for entry in entries if isinstance(entry, kind)]


def paid(entries: Iterable[Entry]) -> list[Paid]:
    """All that was paid for."""
    return [entry for entry in entries if isinstance(entry, Paid)]


def released(entries: Sequence[Entry], order: Order) -> Release | None:
    """The latest release that is what is ordered, if there is one."""
    by_debit = {each.debit: each for each in chosen(entries, Release)}
    fitting = [each for each in chosen(entries, Debit) if each.number in by_debit and each.fits(order)]
    return by_debit[fitting[-1].number] if fitting else None


def spent(entries: Iterable[Entry], data: str | None = None) -> Cost:
    """For one sample: in all, or on one version of the data."""
    return total(each.cost for each in paid(entries) if data in (None, each.data))


def versions(entries: Iterable[Entry]) -> list[str]:
    """The versions of the data that anything was released from, in order."""
    return list(dict.fromkeys(each.data for each in entries if isinstance(each, Paid | Open)))


def head_from(fields: Any) -> Head:
    """A head as JSON has it. Raises LedgerFault."""
    try:
        head = Head(**fields)
        if type(head.lines) is int and head.lines >= 0 and type(head.last) is str:
            return head
    except TypeError:
        pass
    raise LedgerFault("the ledger's head cannot be read")
