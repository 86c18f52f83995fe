"""One stream of calls from a gateway to the server. A batch is what came while the last one was written."""

import asyncio
from collections import deque
from typing import Any, NamedTuple

from grpc import aio

from shoal.core.errors import Unavailable
from shoal.core.exchange._pb.fed.v1 import gateway_service_pb2 as pb

METHOD = "/fed.v1.GatewayService/Carry"
BATCH = 1 << 20
"""Bytes of requests in one message, apart from the last one in it."""
AGAIN = (0.5, 3.0)


class Caller(NamedTuple):
    """A device at the gateway. certificate: PEM. address: as gRPC writes it."""

    certificate: bytes
    address: str


class CallStream:
    """Carries calls until it breaks or is closed. broken: whether it takes no more.

    callers: how many devices have called on it.
    """

    def __init__(self, channel: aio.Channel) -> None:
        begin: Any = channel.stream_stream(
            METHOD,
            request_serializer=pb.CarryRequest.SerializeToString,
            response_deserializer=pb.CarryResponse.FromString,
        )
        self._call = begin()
        self._callers: dict[Caller, int] = {}
        self._calls: deque[tuple[pb.Call, pb.Caller | None]] = deque()
        self._canceled: list[int] = []
        self._waiting: dict[int, asyncio.Future[pb.Answer]] = {}
        self._number, self._some, self.broken = 0, asyncio.Event(), False
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read())]

    async def ask(self, caller: Caller, method: str, message: bytes, session: str) -> pb.Answer:
        """The server's answer. Raises Unavailable if the stream breaks before it comes."""
        self._number += 1
        number, new = self._number, None
        if caller not in self._callers:
            self._callers[caller] = len(self._callers)
            new = pb.Caller(
                caller=self._callers[caller], certificate=caller.certificate, address=caller.address
            )
        who = self._callers[caller]
        call = pb.Call(call=number, caller=who, method=method, message=message, session=session)
        self._calls.append((call, new))
        future: asyncio.Future[pb.Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self._some.set()
        try:
            return await future
        except asyncio.CancelledError:  # the device waits no longer
            self._canceled.append(number)
            self._some.set()
            raise
        finally:
            del self._waiting[number]

    @property
    def callers(self) -> int:
        return len(self._callers)

    async def _write(self) -> None:
        try:
            while True:
                await self._some.wait()
                await self._call.write(self._batch())
        except (aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the reader finds out why
        finally:
            self._break()

    def _batch(self) -> pb.CarryRequest:
        message = pb.CarryRequest(canceled=self._canceled)
        self._canceled, size = [], 0
        while self._calls and size < BATCH:
            call, new = self._calls.popleft()
            if new is not None:  # also if this call was given up: later ones name the same caller
                message.callers.append(new)
                size += new.ByteSize()
            if call.call in self._waiting:
                message.calls.append(call)
                size += call.ByteSize()
        if not self._calls:
            self._some.clear()
        return message

    async def _read(self) -> None:
        try:
            while isinstance(found := await self._call.read(), pb.CarryResponse):
                for answer in found.answers:
                    future = self._waiting.get(answer.call)
                    if future is not None and not future.done():
                        future.set_result(answer)
        except aio.AioRpcError:
            pass
        finally:
            self._break()

    def _break(self) -> None:
        """Let the devices of all open calls repeat them."""
        self.broken = True
        for future in self._waiting.values():
            if not future.done():
                problem = "this gateway has lost its connection to the server"
                future.set_exception(Unavailable(problem, "try again soon", AGAIN))

    async def retire(self) -> None:
        """Wait until the last answer has come, and end the stream."""
        while self._waiting and not self.broken:
            await asyncio.wait(set(self._waiting.values()))
            await asyncio.sleep(0)  # for those who wait, to count themselves off
        await self.close()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._call.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
