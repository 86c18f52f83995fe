"""What the lines of a device's ledger say: payments, releases, and what left without a guarantee.

This module touches no files.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from shoal.core.privacy.accountant import Lesson, Order, Poll, Tally
from shoal.core.privacy.cost import Cost, rho_of, total
from shoal.core.privacy.noise import vote

T = TypeVar("T")


@dataclass(frozen=True)
class Debit:
    """A release that is paid for, even if it never leaves. number: 1, 2, ... over debits and trainings.

    at: seconds since 1970, by the device's clock. purpose to group_size: what was requested, and for what.
    source: name of the data source. run: that asked for it. holder: which of the devices that share the
    ledger paid.
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
    source: str = ""
    run: str = ""
    holder: str = ""

    @classmethod
    def of(
        cls, order: Order, number: int, at: float, source: str = "", run: str = "", holder: str = ""
    ) -> "Debit":
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
            source,
            run,
            holder,
        )

    @property
    def cost(self) -> Cost:
        return Cost(self.rho)

    def fits(self, order: Order) -> bool:
        """Whether the release for this debit can be used for the order. Where the order has no classes, a
        release with classes can be used too, with any labels. A release is used whatever has become of the
        data since, so that no answer tells whether they have changed."""
        again = Debit.of(order, self.number, self.at, self.source, self.run, self.holder)
        indifferent: dict[str, Any] = {"purpose": "", "data": ""}
        if not order.terms.classes:
            indifferent |= {"classes": 0}
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
    holder: str = ""

    @classmethod
    def of(
        cls, lesson: Lesson, number: int, at: float, source: str = "", run: str = "", holder: str = ""
    ) -> "Training":
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
            holder,
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
    holder: str = ""

    @classmethod
    def of(
        cls, tally: Tally, number: int, at: float, source: str = "", run: str = "", holder: str = ""
    ) -> "Counted":
        rest = (tally.model, tally.part, tally.data, source, run, holder)
        return cls(number, at, tally.purpose, tally.rho, *rest)

    @property
    def cost(self) -> Cost:
        return Cost(self.rho)

    def fits(self, tally: Tally) -> bool:
        """Whether this count answers the same question; see `Debit.fits`."""
        again = Counted.of(tally, self.number, self.at, self.source, self.run, self.holder)
        return self == replace(again, data=self.data)


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
    holder: str = ""

    @classmethod
    def of(
        cls, poll: Poll, number: int, at: float, source: str = "", run: str = "", holder: str = ""
    ) -> "Cast":
        cost = vote.cost(poll.epsilon).curve
        rest = (poll.question, poll.data, source, run, holder)
        return cls(number, at, poll.purpose, poll.epsilon, cost, *rest)

    @property
    def cost(self) -> Cost:
        return Cost(curve=tuple(self.curve))

    def fits(self, poll: Poll) -> bool:
        """Whether this vote answers the same question; see `Debit.fits`."""
        return (self.epsilon, self.question) == (poll.epsilon, poll.question)


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
class FailedBefore:
    """Failures that are only counted, in a file beside the ledger and not in a line. times: their number."""

    times: int


@dataclass(frozen=True)
class Summed:
    """An update that left under masks. The fields are those of `Share`.

    It has no cost: that the other devices of the cohort add their part of the noise is not for this device to
    see. holder: which of the devices that share the ledger has sent it.
    """

    at: float
    run: str
    cohort: str
    devices: int
    fewest: int
    clip: float
    noise: float
    data: str
    masked: str
    holder: str = ""

    @property
    def rho(self) -> float:
        """What it costs all samples of the device together, if the others add their noise; infinite without
        noise."""
        return rho_of(self.noise) if self.noise * self.noise else math.inf  # so little noise hides nothing


@dataclass(frozen=True)
class Reserved:
    """What all of a run is going to cost, kept for it before its first task: no other run can spend it.

    rho, curve: that cost, for one sample. holder: which of the devices that share the ledger takes part.
    """

    at: float
    run: str
    rho: float
    curve: tuple[float, ...]
    data: str
    source: str = ""
    holder: str = ""

    @property
    def cost(self) -> Cost:
        return Cost(self.rho, tuple(self.curve))


@dataclass(frozen=True)
class GivenBack:
    """What a run has not spent of its reservation is free again: it is over, or its owner has refused it."""

    at: float
    run: str
    holder: str = ""


Paid = Debit | Training | Counted | Cast
Entry = Paid | Release | Open | Failed | FailedBefore | Summed | Reserved | GivenBack


def chosen(entries: Iterable[Entry], kind: type[T]) -> list[T]:
    """Select the entries of one kind."""
    return [entry for entry in entries if isinstance(entry, kind)]


def paid(entries: Iterable[Entry]) -> list[Paid]:
    """Select all entries that have a cost."""
    return [entry for entry in entries if isinstance(entry, Paid)]


def spent(entries: Iterable[Entry], data: str | None = None) -> Cost:
    """Sum the cost for one sample, over all versions of the data or on one."""
    return total(each.cost for each in paid(entries) if data in (None, each.data))


def versions(entries: Iterable[Entry]) -> list[str]:
    """List the versions of the data from which anything was released, in order."""
    return list(dict.fromkeys(each.data for each in entries if isinstance(each, Paid | Open)))
