"""Errors that only a device has; those that it shares with the server are in `shoal.core.errors`."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shoal.core.errors import BadPayload, DeviceFault, LearnerFault, Refused, ShoalError
from shoal.core.exchange.link import Failure
from shoal.core.types import RunId


class WorkerDied(ShoalError):
    """The training process ended on its own; the message says how.

    To do: see what it printed; if memory was short, take smaller batches.
    """

    code, exit_code = "worker-died", 8


class TaskFailed(LearnerFault):
    """This device could not do a task; the code is that of the cause."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message, "", failure.details)
        self.code = failure.code  # type: ignore[misc]


class UnreadableTask(BadPayload):
    """A task that this version cannot read. What can be read is which one it is: run, round and attempt."""

    def __init__(self, error: BadPayload, lease: tuple[RunId, int, int]) -> None:
        super().__init__(error.message, error.hint)
        self.lease = lease


class NoPart(Refused):
    """All runs that go on ask for what this device refuses; the code is that of the cause."""

    def __init__(self, run: RunId, failure: Failure) -> None:
        super().__init__(
            f"run {run} goes on without this device: {failure.message}",
            "start fedclient again once that has changed",
        )
        self.code = failure.code  # type: ignore[misc]


class NoAlgorithm(ShoalError):
    """The run's algorithm has tasks of its own, which this device cannot do without its package.

    To do: install the package that the hint names, if you trust it.
    """

    code, exit_code = "no-algorithm", 8

    def __init__(self, algorithm: str, package: str, tasks: Sequence[str]) -> None:
        """package: as the server names it, "" if it does not. tasks: the kinds that cannot be done here."""
        found = f"install the package {package}" if package else "ask the run's operator for its package"
        super().__init__(
            f"algorithm {algorithm} has tasks of its own, which this device cannot do: {', '.join(tasks)}",
            f"{found} on this device, in the version that the server has, and start fedclient again; its "
            "code then runs here, so install only what you trust",
        )


class Abstained(ShoalError):
    """No cluster fits the device's data well enough.

    To do: `--accept-nearest`, or wait for more rounds.
    """

    code, exit_code = "abstained", 1


class WrongServer(Refused):
    """The server that answers is not the one that the join string names.

    To do: a new join string; or find out who stands between.
    """

    code = "wrong-server"


class Stopped(ShoalError):
    """A signal ended the agent before its work was done.

    To do: nothing.

    The exit code is 128 plus the signal's number, as in shells.
    """

    code, exit_code = "stopped", 130

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"stopped by {number.name}")
        self.exit_code = 128 + number  # type: ignore[misc]


@contextmanager
def torch_required() -> Iterator[None]:
    """Around an import that needs PyTorch. Raises DeviceFault if it is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise DeviceFault(
            "PyTorch is not installed on this device",
            "pip install torch, or on a device without a GPU its CPU build (see pytorch.org); or remove "
            "`learner` to use the graph of a run (docs/light.md)",
        ) from None
