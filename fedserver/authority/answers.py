"""What operators are answered about devices, operators and the server's key.

It stands apart from what finds the answers, so that a process that only asks, such as a verb of the command
line or the page, does not load the server.
"""

from dataclasses import dataclass

from fedserver.coordinator.status_types import WithdrawnRelease, WithdrawnRun
from fedserver.store.identities.records import Operator, Registered
from shoal.core.types import RunId


@dataclass(frozen=True)
class Known(Registered):
    """A device, and when it last called: clock time; None: never."""

    last_seen: float | None = None


@dataclass(frozen=True)
class Ended:
    """A device that was revoked. cut: how many open calls were cut. counted: the rounds with its updates."""

    device: Known
    cut: int
    counted: tuple[tuple[RunId, int], ...]


@dataclass(frozen=True)
class Withdrawn:
    """A device that is to be withdrawn, or was: its standing says which. cut: as of Ended. runs, releases:
    where it is."""

    device: Known
    cut: int
    runs: tuple[WithdrawnRun, ...] = ()
    releases: tuple[WithdrawnRelease, ...] = ()


@dataclass(frozen=True)
class IssuedOperator:
    """What an operator is given besides the key. certificate, authority: PEM. address: where the server
    listens for operators, "HOST:PORT"."""

    operator: Operator
    certificate: bytes
    authority: bytes
    address: str


@dataclass(frozen=True)
class Rotated:
    """A new key of the server. pin: its SHA-256. operators: who needs a new folder to call from elsewhere."""

    pin: bytes
    operators: tuple[str, ...]
