"""A stream that is cut, at whatever moment, ends with a status that its caller gets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from grpc import aio

from fedserver.authority.open_calls import OpenCalls
from fedserver.rpc.admission.identity import Context
from fedserver.rpc.admission.messages import Behavior, Calls
from fedserver.rpc.errors import Errors
from shoal.core.errors import Refused


class Counted:
    """A layer that counts all calls as those of one caller, who is revoked later. arrived: called with each
    call that arrives."""

    def __init__(self, arrived: Callable[[], None]) -> None:
        self.calls, self._arrived = OpenCalls(), arrived

    def around(self, method: str, behavior: Behavior) -> Behavior:
        async def counted(request: object, context: Context) -> None:
            with self.calls.calling("anna", _revoked):
                self._arrived()
                await behavior(request, context)

        return counted


def _revoked() -> None:
    raise Refused("anna was revoked")


@pytest.mark.parametrize("begins", ["as it arrives", "as it writes"])
@pytest.mark.parametrize("steps", range(8))
def test_a_stream_that_is_cut_before_or_during_its_first_write_ends_with_a_status(
    begins: str, steps: int
) -> None:
    """steps: of the event loop, after which it is cut; headers and a write take two or three of them each."""

    async def story() -> None:
        loop = asyncio.get_running_loop()

        def cut(after: int) -> None:
            if after == 0:
                layer.calls.cut("anna")
            else:
                loop.call_soon(cut, after - 1)

        async def watch(request: StringValue, context: Context) -> AsyncIterator[StringValue]:
            if begins == "as it writes":
                loop.call_soon(cut, steps)
            yield request
            await asyncio.Event().wait()

        layer = Counted(lambda: cut(steps) if begins == "as it arrives" else None)
        server = aio.server(interceptors=[Calls(Errors(), layer)])
        handler = grpc.unary_stream_rpc_method_handler(
            watch, StringValue.FromString, StringValue.SerializeToString
        )
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("a.B", {"Watch": handler})])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            method = channel.unary_stream("/a.B/Watch", StringValue.SerializeToString, StringValue.FromString)
            watching = method(StringValue(value="x"), timeout=60.0)
            with contextlib.suppress(aio.AioRpcError):
                while await watching.read() != aio.EOF:
                    pass
            assert await watching.code() is grpc.StatusCode.PERMISSION_DENIED
            assert await watching.details() == "anna was revoked"
        await server.stop(0)

    asyncio.run(story())
