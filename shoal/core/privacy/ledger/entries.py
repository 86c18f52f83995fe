"""What the lines of a device's ledger say: payments, releases, and what left without a guarantee.

at: seconds since 1970, by the device's clock. run: that asked for it. source: name of the data source.
holder: which of the devices that share the ledger wrote the line. This module touches no files.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from shoal.core.privacy.accountant import MaskedUpdate
from shoal.core.privacy.cost import Cost, rho_of, total
from shoal.core.privacy.payment import Payment

T = TypeVar("T")


@dataclass(frozen=True)
class Debit:
    """Something that is paid for, even if it never leaves. number: 1, 2, ... over all debits."""

    number: int
    at: float
    payment: Payment
    source: str = ""
    run: str = ""
    holder: str = ""


@dataclass(frozen=True)
class Release:
    """What was released or trained for a debit. release: the SHA-256 of its bytes.

    The bytes of what can be given again stay on the disk. Weights wait in the outbox until the server has
    them.
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
class FailedBefore:
    """Failures that are only counted, in a file beside the ledger and not in a line. times: their number."""

    times: int


@dataclass(frozen=True)
class Summed:
    """An update that left under masks."""

    at: float
    run: str
    update: MaskedUpdate
    holder: str = ""

    @property
    def rho(self) -> float:
        """What it costs all samples of the device together, if the others add their noise; infinite without
        noise."""
        noise = self.update.noise
        return rho_of(noise) if noise * noise else math.inf  # so little noise hides nothing


@dataclass(frozen=True)
class Reserved:
    """What all of a run is going to cost one sample, kept for it before its first task: no other run can
    spend it."""

    at: float
    run: str
    cost: Cost
    data: str
    source: str = ""
    holder: str = ""


@dataclass(frozen=True)
class GivenBack:
    """What a run has not spent of its reservation is free again: it is over, or its owner has refused it."""

    at: float
    run: str
    holder: str = ""


Entry = Debit | Release | Open | Failed | FailedBefore | Summed | Reserved | GivenBack


def chosen(entries: Iterable[Entry], kind: type[T]) -> list[T]:
    """Select the entries of one kind."""
    return [entry for entry in entries if isinstance(entry, kind)]


def paid(entries: Iterable[Entry], kind: str = "") -> list[Debit]:
    """Select what was paid for; all of it, or of one kind, such as `shoal.core.privacy.payment.VOTE`."""
    return [entry for entry in chosen(entries, Debit) if kind in ("", entry.payment.kind)]


def spent(entries: Iterable[Entry], data: str | None = None) -> Cost:
    """Sum the cost for one sample, over all versions of the data or on one."""
    return total(each.payment.cost for each in paid(entries) if data in (None, each.payment.data))


def versions(entries: Iterable[Entry]) -> list[str]:
    """List the versions of the data from which anything was released, in order."""
    return list(
        dict.fromkeys(
            each.payment.data if isinstance(each, Debit) else each.data
            for each in entries
            if isinstance(each, Debit | Open)
        )
    )
