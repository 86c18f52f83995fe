"""Where releases with a guarantee are made and paid for, as the device halves see it.

A real device has a ledger on its disk (`fedclient.store.ledger`); a simulation pays nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from shoal.core.errors import DeviceFault
from shoal.core.exchange.parts import Descriptor, Integers, PrivacySettings
from shoal.core.privacy.dpsgd import TrainingTerms
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.noise.vote import drawn
from shoal.core.privacy.release import noisy_count, release_sums
from shoal.core.privacy.sums import ExactSums
from shoal.core.privacy.terms import Terms
from shoal.core.types import Tensors


@dataclass(frozen=True)
class Order:
    """A release that is asked for: what it is for, on what terms, and from what.

    purpose: for people. encoder, projector: SHA-256 of their tensors. data: version of all of the device's
    data, labels apart (`shoal.core.data.version`).
    """

    purpose: str
    settings: PrivacySettings
    terms: Terms
    encoder: str
    projector: str
    data: str

    @property
    def without_classes(self) -> "Order":
        """The same order without classes, on the same terms."""
        return replace(self, terms=replace(self.terms, classes=0))


@dataclass(frozen=True)
class Lesson:
    """Training that is asked for: what it is for, on what terms, and on which data (as in `Order`)."""

    purpose: str
    terms: TrainingTerms
    data: str


@dataclass(frozen=True)
class Tally:
    """A count with noise that is asked for, of which one sample moves at most 1. rho: what it may cost.

    purpose, data: as in `Order`. model: SHA-256 of the tensors that it is about. part: of the data.
    """

    purpose: str
    rho: float
    model: str
    part: str
    data: str


@dataclass(frozen=True)
class Poll:
    """A vote that is asked for (`shoal.core.privacy.noise.vote`). epsilon: what it may cost a sample.

    purpose, data: as in `Order`. question: SHA-256 of what is voted on, and by what.
    """

    purpose: str
    epsilon: float
    question: str
    data: str


@dataclass(frozen=True)
class Share:
    """A part in a sum of secure aggregation, of which the server learns only the sum.

    cohort: SHA-256 of its manifest. devices: of it; fewest: of them in a sum that can be unmasked. clip: L2
    norm to which the update was shortened. noise: in the sum, in units of clip; 0 for none. data: as in
    `Order`. masked: SHA-256 of the update under its masks.
    """

    cohort: str
    devices: int
    fewest: int
    clip: float
    noise: float
    data: str
    masked: str


class Account(Protocol):
    """Makes releases, each paid for once."""

    def release(self, order: Order, exact: Callable[[], ExactSums]) -> Descriptor:
        """The release that is ordered: an earlier one, which costs nothing, or else a new one.

        Where the budget no longer has room for classes, an earlier release without classes is given again.
        exact: computes the sums, and is not called for what was made before or cannot be paid.
        Raises OverBudget where the owner's budget has no room.
        """
        ...

    def train(self, lesson: Lesson, work: Callable[[Entropy], Tensors]) -> Tensors:
        """What `work` makes of entropy for its noise, which it gets once the lesson is paid.

        Training is never recalled: asked for again, it is paid for and done again. Raises OverBudget.
        """
        ...

    def count(self, tally: Tally, exact: Callable[[], int]) -> int:
        """The count that is asked for, with noise: an earlier one, which costs nothing, or else a new one.

        exact: counts, and is not called for what was made before or cannot be paid. Raises OverBudget.
        """
        ...

    def vote(self, poll: Poll, exact: Callable[[], Integers]) -> int:
        """The index that is drawn in a vote: an earlier one, which costs nothing, or else a new one.

        exact: computes the scores, and is not called for what was drawn before or cannot be paid. Raises
        OverBudget.
        """
        ...

    def unprotected(self, what: str, data: str) -> None:
        """Note that something leaves without a guarantee: `what`, of data of this version.

        Raises Unprotected where the owner does not allow it.
        """
        ...

    def summed(self, share: Share) -> None:
        """Note that an update leaves under masks. Raises DeviceFault where another one has left for this sum:
        the difference of the two would be that of the updates."""
        ...


class Unmetered:
    """Serves simulations, whose data need no protection: noise comes from `entropy`, and nothing is paid."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy

    def release(self, order: Order, exact: Callable[[], ExactSums]) -> Descriptor:
        return release_sums(exact(), order.settings, order.terms, order.projector, self._entropy)

    def train(self, lesson: Lesson, work: Callable[[Entropy], Tensors]) -> Tensors:
        return work(self._entropy)

    def count(self, tally: Tally, exact: Callable[[], int]) -> int:
        return noisy_count(exact(), tally.rho, self._entropy)

    def vote(self, poll: Poll, exact: Callable[[], Integers]) -> int:
        return drawn(exact(), poll.epsilon, self._entropy)

    def unprotected(self, what: str, data: str) -> None:
        pass

    def summed(self, share: Share) -> None:
        pass


class NoAccount:
    """Stands in where there is no account: it refuses every release with a guarantee."""

    def release(self, order: Order, exact: Callable[[], ExactSums]) -> Descriptor:
        raise _missing()

    def train(self, lesson: Lesson, work: Callable[[Entropy], Tensors]) -> Tensors:
        raise _missing()

    def count(self, tally: Tally, exact: Callable[[], int]) -> int:
        raise _missing()

    def vote(self, poll: Poll, exact: Callable[[], Integers]) -> int:
        raise _missing()

    def unprotected(self, what: str, data: str) -> None:
        pass

    def summed(self, share: Share) -> None:
        pass


def _missing() -> DeviceFault:
    return DeviceFault(
        "no privacy account is kept here, so nothing can be released with a guarantee",
        "give the device context an account",
    )
