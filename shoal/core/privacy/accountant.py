"""Where releases with a guarantee are made and paid for, as the device halves see it.

A real device has a ledger on its disk (`fedclient.store.ledger`); a simulation pays nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.payment import Payment

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class MaskedUpdate:
    """A part in a sum of secure aggregation, of which the server learns only the sum.

    It has no cost: that the other devices of the cohort add their part of the noise is not for this device to
    see. cohort: SHA-256 of its manifest. devices: of it; fewest: of them in a sum that can be unmasked. clip:
    L2 norm to which the update was shortened. noise: in the sum, in units of clip; 0 for none. data: as in
    `Payment`. masked: SHA-256 of the update under its masks.
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

    def pay(self, payment: Payment, exact: Callable[[], T], noised: Callable[[T, Entropy], R]) -> R:
        """What is asked for: an earlier answer, which costs nothing, or else a new one.

        exact: computes what the answer is made of, and is not called for what was made before or cannot be
        paid. noised: makes the answer of that, with noise of this entropy, and is not called before the
        payment is made. Where the budget has no room, an earlier answer is given however old it is, and a
        description without classes for one with some. Raises OverBudget where there is none.
        """
        ...

    def unprotected(self, what: str, data: str) -> None:
        """Note that something leaves without a guarantee: `what`, of data of this version.

        Raises Unprotected where the owner does not allow it.
        """
        ...

    def summed(self, update: MaskedUpdate) -> None:
        """Note that an update leaves under masks. Raises DeviceFault where another one has left for this sum:
        the difference of the two would be that of the updates."""
        ...


class Unmetered:
    """Serves simulations, whose data need no protection: noise comes from `entropy`, and nothing is paid."""

    def __init__(self, entropy: Entropy) -> None:
        self._entropy = entropy

    def pay(self, payment: Payment, exact: Callable[[], T], noised: Callable[[T, Entropy], R]) -> R:
        return noised(exact(), self._entropy)

    def unprotected(self, what: str, data: str) -> None:
        pass

    def summed(self, update: MaskedUpdate) -> None:
        pass
