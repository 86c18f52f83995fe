"""Errors on the wire: the code and texts of a ShoalError, without the server's traceback."""

from collections.abc import Iterator

from shoal.core.errors import ShoalError, Unavailable
from shoal.core.exchange._pb.fed.v1 import fault_pb2
from shoal.core.exchange.wire.checks import (
    MAX_TEXT,
    for_people,
    name,
    seconds_to_pb,
    text,
    window_from_pb,
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
    error = cls.__new__(cls)  # its own constructor may take what the message was made of
    ShoalError.__init__(error, text(pb.message, "a fault's message"), text(pb.hint, "a fault's hint"))
    has_window = pb.HasField("earliest") or pb.HasField("latest")
    window = window_from_pb(pb, "a fault") if has_window else None
    if isinstance(error, Unavailable):
        error.window = window
    return error


def _tree(cls: type[ShoalError]) -> Iterator[type[ShoalError]]:
    """A class before those that inherit its code."""
    yield cls
    for child in cls.__subclasses__():
        yield from _tree(child)
