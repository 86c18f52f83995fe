"""What operators are answered about devices and authorities.

It stands apart from what finds the answers, so that a process that only asks, such as a verb of the command
line or the page, does not load the server.
"""

from dataclasses import dataclass

from fedserver.store.identities.records import Operator, Registered
from shoal.core.types import RunId


@dataclass(frozen=True)
class Known:
    """A device, and when it last called: clock time; None: never."""

    device: Registered
    last_seen: float | None


@dataclass(frozen=True)
class Ended:
    """A device that was revoked. cut: how many open calls were cut. counted: the rounds with its updates."""

    known: Known
    cut: int
    counted: tuple[tuple[RunId, int], ...]


@dataclass(frozen=True)
class IssuedOperator:
    """What an operator is given besides the key. certificate, authorities: PEM. address: where the server
    listens for operators, "HOST:PORT"."""

    operator: Operator
    certificate: bytes
    authorities: bytes
    address: str


@dataclass(frozen=True)
class Root:
    """An authority. pin: SHA-256 of its key. certificates: how many valid ones it has signed.

    awaited: approved devices, seen recently, that do not know it yet, and operators, as "operator NAME".
    """

    name: str
    pin: bytes
    signs: bool
    expires: float
    certificates: int
    awaited: tuple[str, ...]
