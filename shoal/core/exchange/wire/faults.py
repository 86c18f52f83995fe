"""Errors on the wire: the code and texts of a ShoalError, without the server's traceback."""

from collections.abc import Iterator

from shoal.core.errors import BadPayload, ShoalError, Unavailable
from shoal.core.exchange._pb.fed.v1 import fault_pb2
from shoal.core.exchange.wire.checks import (
    MAX_TEXT,
    for_people,
    name,
    present,
    seconds_from_pb,
    seconds_to_pb,
    text,
)


def fault_to_pb(error: ShoalError, message: int = MAX_TEXT, hint: int = MAX_TEXT) -> fault_pb2.Fault:
    """message, hint: characters of each, at most, from the beginning."""
    fault = fault_pb2.Fault(
        code=error.code, message=for_people(error.message[:message]), hint=for_people(error.hint[:hint])
    )
    if isinstance(error, Unavailable) and error.window:
        earliest, latest = error.window
        fault.earliest.CopyFrom(seconds_to_pb(earliest))
        fault.latest.CopyFrom(seconds_to_pb(latest))
    return fault


def fault_from_pb(pb: fault_pb2.Fault) -> ShoalError:
    """The error to raise on this side: of the class with that code, or a plain ShoalError."""
    code = name(pb.code, "a fault's code")
    cls = next((cls for cls in _tree(ShoalError) if cls.code == code), ShoalError)
    error = cls(text(pb.message, "a fault's message"), text(pb.hint, "a fault's hint"))
    window = _window(pb)
    if isinstance(error, Unavailable):
        error.window = window
    return error


def _window(pb: fault_pb2.Fault) -> tuple[float, float] | None:
    if not (pb.HasField("earliest") or pb.HasField("latest")):
        return None
    present(pb, "earliest", "a fault's window")
    present(pb, "latest", "a fault's window")
    earliest = seconds_from_pb(pb.earliest, "a fault's earliest")
    latest = seconds_from_pb(pb.latest, "a fault's latest")
    if latest < earliest:
        raise BadPayload(f"a fault's window ends ({latest} s) before it begins ({earliest} s)")
    return earliest, latest


def _tree(cls: type[ShoalError]) -> Iterator[type[ShoalError]]:
    """A class before those that inherit its code."""
    yield cls
    for child in cls.__subclasses__():
        yield from _tree(child)
