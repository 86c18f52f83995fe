"""What can go wrong on a device, besides what `shoal.core.errors` has."""

import signal

from shoal.core.errors import LearnerFault, Refused, ShoalError
from shoal.core.exchange.link import Failure


class WorkerDied(ShoalError):
    """The training process ended by itself; the message says how."""

    code, exit_code = "worker-died", 8


class TaskFailed(LearnerFault):
    """A task that this device could not do, with the code of what it failed for."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message, "", failure.details)
        self.code = failure.code  # type: ignore[misc]


class Abstained(ShoalError):
    """No cluster fits the device's data."""

    code, exit_code = "abstained", 1


class NotApproved(ShoalError):
    """An operator has to approve this device first."""

    code, exit_code = "not-approved", 6


class SomeoneElse(Refused):
    """Who answers is not whom the join string names."""

    code = "someone-else"


class Stopped(ShoalError):
    """A signal ended the agent before its work was done; the exit code is the one of shells, 128 and more."""

    code, exit_code = "stopped", 130

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"stopped by {number.name}")
        self.exit_code = 128 + number  # type: ignore[misc]
