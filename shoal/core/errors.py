"""Every error that a person can meet, split by who has to act.

    ShoalError
    |- ConfigError        a setting is wrong             -> the person who wrote it
    |- DeviceFault        a device broke the contract    -> its owner; the round goes on without it
    |  |- BadPayload      shape, dtype, name, NaN, size, unknown field
    |  `- StaleReport     a report for a round, attempt or run that is over
    |- LearnerFault       the author's own code failed   -> the author; carries the traceback
    |- DataFault          a data file is not usable      -> the device's owner
    |- Refused            the peer is not allowed to, or cannot, do that
    |  |- Unauthenticated the key is not known, or not approved
    |  |- Revoked         an operator has ended this identity
    |  |- Taken           another device has that name
    |  |- TooFewSamples    noise would hide what they tell
    |  |- NoConsent        the owner has not consented to what the run asks for
    |  |- OverBudget      the owner's privacy budget has no room for it
    |  |- Unprotected     the owner lets nothing leave without a privacy guarantee
    |  `- WrongVersion    the two sides have no version of the exchange in common
    |- NotFound           no such run, blob or device
    |- Unavailable        the other side cannot be reached, or not now: try again
    |  |- Busy             it is overloaded at the moment
    |  |- ServerFull       its disk has no space left
    |  |- InDoubt          its state is older than what devices have seen; its operator has to act
    |  |- NotLeader        another server does the work, and this one stands by
    |  `- TooOften         more calls than are allowed: wait, then try again
    |- SessionLost        the server or the device was restarted: say hello again
    |- StorageFault       our own disk failed: read-only, broken
    |  |- DatabaseLost     the session with a database elsewhere is over, or cannot begin
    |  `- DiskFull        it has no space left: nothing was written, and the same can be tried again
    |     |- TooManyFiles the process or the machine has no file descriptor left: the same
    |     `- BucketAway   the bucket that has the blobs cannot be used at the moment: the same
    |- LedgerFault        the device's privacy ledger was changed or is damaged
    `- IllegalEvent       our own bug: an event that the table does not allow

`code` is stable and is what programs match on; `exit_code` is the exit code of a command.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class ShoalError(Exception):
    """An error that says what went wrong (`message`) and what to do about it (`hint`, which may be empty).

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
    code, exit_code = "bad-config", 3


class Missing(ShoalError):
    """A package that only this function needs is not installed."""

    code, exit_code = "missing-package", 3


class DeviceFault(ShoalError):
    code, exit_code = "device-fault", 8


class BadPayload(DeviceFault):
    code = "bad-payload"


class OtherShape(BadPayload):
    """The run's model does not have the shape of the device's network. Shapes say nothing of the data, so the
    server's operator may read them.

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


class StaleReport(DeviceFault):
    code = "stale-report"


class LearnerFault(ShoalError):
    """The author's own code failed. `details` is its traceback, of bounded length."""

    code, exit_code = "learner-failed", 8

    def __init__(self, message: str, hint: str = "", details: str = "") -> None:
        super().__init__(message, hint)
        self.details = details


class Diverged(LearnerFault):
    """Training has left the range of numbers: a loss, weights or latents are NaN or infinite."""


def diverged(what: str, rate: float | None = None) -> Diverged:
    """The error. what: went out of range. rate: of learning, where it is known."""
    given = "" if rate is None else f" (it is {rate:g})"
    hint = f"lower learning_rate{given}, or set it to auto; or look at the scale of the data"
    return Diverged(f"training diverged: {what}", hint)


class DataFault(ShoalError):
    code, exit_code = "bad-data", 8


class Refused(ShoalError):
    code, exit_code = "refused", 5


class Unauthenticated(Refused):
    code = "unauthenticated"


class Revoked(Refused):
    code = "revoked"


class Taken(Refused):
    code = "name-taken"


class WrongVersion(Refused):
    code, exit_code = "wrong-version", 7


class TooFewSamples(Refused):
    code = "too-few-samples"


class NoConsent(Refused):
    code = "no-consent"


class NoNewData(Refused):
    code = "no-new-data"


class OverBudget(Refused):
    code = "over-budget"


class Unprotected(Refused):
    code = "unprotected"


class NotFound(ShoalError):
    code, exit_code = "not-found", 1


class Unavailable(ShoalError):
    """The other side cannot be reached, or not now. window: try again between these two numbers of seconds
    from now, if the other side has said so."""

    code, exit_code = "unavailable", 4

    def __init__(self, message: str, hint: str = "", window: tuple[float, float] | None = None) -> None:
        super().__init__(message, hint)
        self.window = window


class Busy(Unavailable):
    code = "busy"


class ServerFull(Unavailable):
    code = "server-full"


class InDoubt(Unavailable):
    code = "in-doubt"


class NotLeader(Unavailable):
    code = "not-leader"


class TooOften(Unavailable):
    code = "too-often"


class SessionLost(ShoalError):
    code, exit_code = "say-hello", 4


class StorageFault(ShoalError):
    code, exit_code = "storage", 8


class DatabaseLost(StorageFault):
    code = "database-lost"


class DiskFull(StorageFault):
    code = "disk-full"


class TooManyFiles(DiskFull):
    code = "too-many-files"


class BucketAway(DiskFull):
    code = "bucket-away"


class LedgerFault(ShoalError):
    code, exit_code = "bad-ledger", 8


class IllegalEvent(ShoalError):
    code, exit_code = "bug", 70


def near(word: str, known: list[str]) -> str:
    """Make a hint: 'did you mean "x"?' if a known word is close to `word`, else the list of known words."""
    from difflib import get_close_matches

    close = get_close_matches(word, known, n=1)
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
