"""Every error that a person can meet, split by who has to act.

The docstring of a class with a `code` of its own says what it means, and after "To do:", where a hint cannot
say it all, what to do. `scripts/errors` makes docs/errors.md of them. `code` is stable and is what programs
match on; `exit_code` is the exit code of a command.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class ShoalError(Exception):
    """An error without a code of its own.

    message: what went wrong. hint: what to do about it; may be empty.

    Example:
        >>> str(ConfigError("rounds cannot be 0", "use 1 or more"))
        'rounds cannot be 0 (use 1 or more)'
    """

    code: ClassVar[str] = "failed"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors travel between processes, whatever their constructors take."""
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[ShoalError], values: tuple[Any, ...], found: dict[str, Any]) -> ShoalError:
    error = kind.__new__(kind, *values)
    error.__dict__.update(found)
    return error


class ConfigError(ShoalError):
    """A setting or a file is wrong, a folder is too new, or others can read a key."""

    code, exit_code = "bad-config", 3


class InUse(ConfigError):
    """Another process of this machine works in the folder at the moment.

    To do: wait for it, stop it, or use another `--state`; systemd starts the service again.
    """

    code, exit_code = "in-use", 4


class Missing(ShoalError):
    """A package that only this function needs is not installed."""

    code, exit_code = "missing-package", 3


class DeviceFault(ShoalError):
    """A device broke the contract; the round goes on without it."""

    code, exit_code = "device-fault", 8


class BadPayload(DeviceFault):
    """A message has the wrong shape, types, names or size, or numbers that are not finite.

    To do: the same versions and the same `build()` on all devices; a lower learning rate.
    """

    code = "bad-payload"


class OtherShape(BadPayload):
    """The run's model does not have the shape of the device's network.

    To do: samples of one shape and the same `build()` everywhere; `fedserver run logs` has both shapes.

    Shapes say nothing of the data, so the server's operator may read them.

    Example:
        >>> OtherShape("0.weight", (8, 5), (8, 4)).message
        "tensor '0.weight' is [8, 5] in the run's model, and [8, 4] on this device"
    """

    code = "other-shape"

    def __init__(self, name: str, run: Sequence[int], here: Sequence[int]) -> None:
        super().__init__(
            f"tensor {name!r} is {list(run)} in the run's model, and {list(here)} on this device",
            "all devices of a run need samples of one shape, and the same build()",
        )


class NotGenuine(BadPayload):
    """A release, or a model of it, is not what the server's key has signed. The model that was used before
    stays.

    To do: `fedclient place` again; if that does not help, do not use it, and ask the server's operator.
    """

    code = "not-genuine"


class StaleReport(DeviceFault):
    """The report is for a round, an attempt or a run that is over, and does not count.

    To do: nothing.
    """

    code = "stale-report"


class LearnerFault(ShoalError):
    """The code of the learner's author failed.

    To do: correct the learner, and try it with `fedclient check`.

    details: its traceback, of bounded length.
    """

    code, exit_code = "learner-failed", 8
    details = ""

    def __init__(self, message: str, hint: str = "", details: str = "") -> None:
        super().__init__(message, hint)
        self.details = details


class WrongShape(LearnerFault):
    """The network refused samples of this shape.

    values: of a flat sample, and what the network takes; None where samples are not flat.
    """

    def __init__(
        self, message: str, hint: str, values: tuple[int, int] | None = None, details: str = ""
    ) -> None:
        super().__init__(message, hint, details)
        self.values = values


class Diverged(LearnerFault):
    """Training has left the range of numbers: a loss, weights or latents are NaN or infinite."""


def diverged(what: str, rate: float | None = None) -> Diverged:
    """The error. what: went out of range. rate: of learning, where it is known."""
    given = "" if rate is None else f" (it is {rate:g})"
    hint = f"lower learning_rate{given}, or set it to auto; or look at the scale of the data"
    return Diverged(f"training diverged: {what}", hint)


class DataFault(ShoalError):
    """A data file cannot be used.

    To do: `fedclient check`.
    """

    code, exit_code = "bad-data", 8


class Refused(ShoalError):
    """The caller may not do that, or the other side cannot."""

    code, exit_code = "refused", 5


class Unauthenticated(Refused):
    """The key is not known or not approved, or the call was not made over TLS 1.3.

    To do: the device comes back by itself; after a [restore](trouble.md#restore), approve it.
    """

    code = "unauthenticated"


class Revoked(Refused):
    """An operator has ended this identity, for good.

    To do: a new join string, and an approval.
    """

    code = "revoked"


class Taken(Refused):
    """Another device has that name.

    To do: another name.
    """

    code = "name-taken"


class WrongVersion(Refused):
    """The two sides have no version of the exchange in common.

    To do: a newer version on the older side: [upgrade](operations.md#upgrade-and-move).
    """

    code, exit_code = "wrong-version", 7


class TooFewSamples(Refused):
    """The noise of privacy would hide what so few samples tell.

    To do: a larger `epsilon` (`privacy=explicit`), or `privacy=off`.
    """

    code = "too-few-samples"


class NoConsent(Refused):
    """The owner has not consented to what the run asks for.

    To do: `fedclient consent`; see [privacy](privacy.md#consent).
    """

    code = "no-consent"


class NoNewData(Refused):
    """The device has trained on these data in this series of runs.

    To do: nothing; the next run takes it once its data have changed.
    """

    code = "no-new-data"


class OverBudget(Refused):
    """The owner's privacy budget has no room for what the run asks for.

    To do: wait, allow more, or ask for less: [budget used up](trouble.md#privacy-budget-used-up).
    """

    code = "over-budget"


class Unprotected(Refused):
    """The owner lets nothing leave without a privacy guarantee.

    To do: `privacy` in `device.yaml`, or a run with a private mode.
    """

    code = "unprotected"


class NotFound(ShoalError):
    """There is no such run, model or device."""

    code, exit_code = "not-found", 1


class Unavailable(ShoalError):
    """The other side cannot be reached, or not now.

    To do: devices try again; see whether the server is up, and its port open.

    window: try again between these two numbers of seconds from now, if the other side has said so.
    """

    code, exit_code = "unavailable", 4

    def __init__(self, message: str, hint: str = "", window: tuple[float, float] | None = None) -> None:
        super().__init__(message, hint)
        self.window = window


class Busy(Unavailable):
    """The other side is overloaded at the moment.

    To do: nothing; it is tried again after a time that the server gave.
    """

    code = "busy"


class ServerFull(Unavailable):
    """The server's disk has no space left.

    To do: [free some](trouble.md#disk-full); devices keep their results and try again.
    """

    code = "server-full"


class InDoubt(Unavailable):
    """The server's state is older than what devices have seen.

    To do: [restore](trouble.md#restore), step 5.
    """

    code = "in-doubt"


class NotLeader(Unavailable):
    """Another server leads, and this one stands by.

    To do: take the folder of the [other server](scaling.md#a-standby); devices try the next address.
    """

    code = "not-leader"


class TooOften(Unavailable):
    """More join attempts, calls, placements or models than are allowed.

    To do: wait a minute, or a day.
    """

    code = "too-often"


class SessionLost(ShoalError):
    """The server or the device was restarted.

    To do: nothing; if it persists, two processes use one name.
    """

    code, exit_code = "say-hello", 4


class StorageFault(ShoalError):
    """The disk of this machine failed, or is read-only, or a file is damaged.

    To do: replace the disk; or [damaged files](trouble.md#damaged-files).
    """

    code, exit_code = "storage", 8


class DatabaseLost(StorageFault):
    """The session with a database elsewhere is over, or cannot begin.

    To do: if it stays away, look at [PostgreSQL](scaling.md#what-takes-over-and-when).
    """

    code = "database-lost"


class DiskFull(StorageFault):
    """This machine's disk has no space left; nothing was written.

    To do: free some.
    """

    code = "disk-full"


class TooManyFiles(DiskFull):
    """The process or the machine has no file descriptor left; nothing was written.

    To do: it is tried again; raise `ulimit -n`.
    """

    code = "too-many-files"


class BucketAway(DiskFull):
    """The bucket that has the models cannot be used at the moment.

    To do: it is tried again; look at its keys and the [bucket](scaling.md#models-and-reports-in-a-bucket).
    """

    code = "bucket-away"


class LedgerFault(ShoalError):
    """The device's privacy ledger was changed or cut, and nothing is released.

    To do: `fedclient ledger --verify`; take it from a backup of the device.
    """

    code, exit_code = "bad-ledger", 8


class Bug(ShoalError):
    """Shoal itself is wrong.

    To do: report it, with the traceback.
    """

    code, exit_code = "bug", 70


class IllegalEvent(Bug):
    """An event that the table does not allow."""


def near(word: object, known: list[str]) -> str:
    """Make a hint: 'did you mean "x"?' if a known word is close to `word`, else the list of known words."""
    from difflib import get_close_matches

    close = get_close_matches(str(word), known, n=1)
    return f'did you mean "{close[0]}"?' if close else f"known: {', '.join(sorted(known))}"


def brief(function: Callable[P, R]) -> Callable[P, R]:
    """Around a function that people call from Python: a ShoalError says what is wrong by itself, so its
    traceback ends at their own line."""

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            return function(*arguments, **named)
        except ShoalError as error:
            raise error.with_traceback(None) from None

    return call
