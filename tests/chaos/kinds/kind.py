"""A kind of fault."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.chaos.trial import Trial


def permitted() -> str:
    return ""


@dataclass(frozen=True)
class Kind:
    """strike: begins the trial's run and strikes; the run ends without it.

    weight: how often it comes in a campaign, compared with others. small_disks: it needs a fleet whose state
    folders lie on file systems of a limited size. plain_text: it can be tried without certificates.
    forbidden: why it cannot be tried here; "" when it can.
    """

    name: str
    strike: Callable[[Trial], Awaitable[None]]
    weight: int = 1
    small_disks: bool = False
    plain_text: bool = True
    forbidden: Callable[[], str] = permitted
