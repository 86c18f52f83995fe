"""Errors on the wire: what a ShoalError says, without the server's traceback."""

from collections.abc import Iterator

from fedcore._pb.fed.v1 import fault_pb2
from fedcore.errors import ShoalError
from fedcore.wire.checks import for_people, name, text


def fault_to_pb(error: ShoalError) -> fault_pb2.Fault:
    return fault_pb2.Fault(code=error.code, message=for_people(error.message), mend=for_people(error.mend))


def fault_from_pb(pb: fault_pb2.Fault) -> ShoalError:
    """The error to raise on this side: of the class with that code, or a plain ShoalError."""
    code = name(pb.code, "a fault's code")
    cls = next((cls for cls in _tree(ShoalError) if cls.code == code), ShoalError)
    return cls(text(pb.message, "a fault's message"), text(pb.mend, "a fault's mend"))


def _tree(cls: type[ShoalError]) -> Iterator[type[ShoalError]]:
    """A class before those that inherit its code."""
    yield cls
    for child in cls.__subclasses__():
        yield from _tree(child)
