"""A server that has lost the lead says so, whatever it would have answered."""

import asyncio
from typing import Any

import grpc
import pytest
from grpc import aio

from fedserver.rpc.errors import Errors
from shoal.core.errors import BadPayload, NotFound, ShoalError, Unauthenticated, Unavailable
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1.fault_pb2 import Fault


class Call:
    """The context of a call, which notes how it ended."""

    def __init__(self) -> None:
        self.fault, self.status = Fault(), grpc.StatusCode.OK

    def set_trailing_metadata(self, metadata: Any) -> None:
        self.fault = Fault.FromString(dict(metadata)["shoal-fault-bin"])

    async def abort(self, status: grpc.StatusCode, details: str) -> None:
        self.status = status
        raise aio.AbortError


def ended(error: ShoalError, deposed: bool) -> tuple[grpc.StatusCode, ShoalError]:
    """How a call ends in which this error is raised."""
    call = Call()

    async def behavior(request: object, context: object) -> None:
        raise error

    answered: Any = Errors(is_deposed=lambda: deposed).around("", behavior)
    with pytest.raises(aio.AbortError):
        asyncio.run(answered(None, call))
    return call.status, wire.fault_from_pb(call.fault)


@pytest.mark.parametrize("error", [NotFound("no such blob"), Unauthenticated("unknown"), BadPayload("wrong")])
def test_an_error_of_a_server_that_was_deposed_is_not_the_callers(error: ShoalError) -> None:
    status, said = ended(error, deposed=True)
    assert (status, said.code) == (grpc.StatusCode.UNAVAILABLE, "not-leader")
    assert ended(error, deposed=False)[1].code == error.code


def test_a_server_that_is_not_available_says_why() -> None:
    assert ended(Unavailable("the server is stopping"), deposed=True)[1].message == "the server is stopping"
