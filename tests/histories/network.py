"""The network of a world: gRPC channels whose calls are late, lost, cut, or answered and never heard.

A call that was lost on the way may arrive later all the same. When the caller is gone, or the line is cut,
the server's work on the call is mostly canceled, as gRPC does, and sometimes not before long.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import grpc
from grpc import aio

from tests.histories.processes import Process, current
from tests.histories.serving import END, Handling, SimServer

KEEPALIVE = 80.0
"""Seconds after which a call without a deadline finds that no one is at the other end."""


@dataclass
class Weather:
    """How bad it is: probabilities for each call, seconds. latency: the longest that a message takes, mostly.

    swept: the longest that one takes now and then. lost, unheard, late: requests, answers, and requests that
    arrive after their caller gave up. cut: transfers that end in the middle. reset: what is lost is known at
    once, else only at the deadline.
    """

    latency: float = 0.05
    swept: float = 0.0
    lost: float = 0.0
    unheard: float = 0.0
    late: float = 0.0
    cut: float = 0.0
    reset: float = 1.0


class Network:
    """server: the process that listens now, or None. clogged: machines that nothing reaches or leaves."""

    def __init__(self, chance: Random, weather: Weather) -> None:
        self.chance, self.weather = chance, weather
        self.server: SimServer | None = None
        self.clogged: set[str] = set()

    def channel(self, address: str, *_: Any, **__: Any) -> "SimChannel":
        process = current()
        assert process is not None
        return SimChannel(self, process)

    def roll(self, probability: float) -> bool:
        return self.chance.random() < probability

    async def travel(self, machine: str) -> None:
        """The way of one message, in one direction."""
        await asyncio.sleep(self.chance.random() * self.weather.latency)
        if self.roll(0.02):
            await asyncio.sleep(self.chance.random() * self.weather.swept)
        if machine in self.clogged:
            await self.nothing()

    async def nothing(self) -> None:
        """A message is lost: the connection breaks, or nothing is ever heard again."""
        if self.roll(self.weather.reset):
            raise broken("connection reset by peer")
        await asyncio.get_running_loop().create_future()

    def deliver(self, call: "Call", requests: Any) -> Handling:
        """Hand a call to the server. Raises what a refused connection is."""
        if self.server is None:
            raise broken("connection refused")
        return self.server.handle(call.path, call.process.identity, call.metadata, requests)

    def call_off(self, handling: Handling) -> None:
        """The caller is gone: the server hears of it now, or late."""
        if not handling.outcome.done():
            after = 0.0 if self.roll(0.7) else self.chance.random() * 60.0
            asyncio.get_running_loop().call_later(after, handling.cancel)


def broken(details: str, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> aio.AioRpcError:
    return aio.AioRpcError(code, aio.Metadata(), aio.Metadata(), details)


class SimChannel:
    """What `grpc.aio.insecure_channel` gives to a process."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network, self._process = network, process

    async def close(self, grace: float | None = None) -> None:
        pass

    def unary_unary(self, path: str, **codecs: Any) -> Any:
        def call(request: Any, timeout: float | None = None, metadata: Any = ()) -> Any:
            return self._call(path, metadata, timeout, codecs).exchange(request)

        return call

    def stream_unary(self, path: str, **codecs: Any) -> Any:
        def call(requests: Any, timeout: float | None = None, metadata: Any = ()) -> Any:
            return asyncio.create_task(self._call(path, metadata, timeout, codecs).send(requests))

        return call

    def unary_stream(self, path: str, **codecs: Any) -> Any:
        def call(request: Any, timeout: float | None = None, metadata: Any = ()) -> Any:
            return Receiving(self._call(path, metadata, timeout, codecs), request)

        return call

    def _call(self, path: str, metadata: Any, timeout: float | None, codecs: Any) -> "Call":
        write, read = codecs["request_serializer"], codecs["response_deserializer"]
        return Call(self._network, self._process, path, tuple(metadata), timeout or KEEPALIVE, write, read)


@dataclass
class Call:
    """One call of a process. write, read: the codecs of its requests and answers."""

    network: Network
    process: Process
    path: str
    metadata: tuple[tuple[str, str], ...]
    timeout: float
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]

    def step(self, what: str) -> None:
        self.process.step(what, self.path.rpartition("/")[2])

    async def exchange(self, request: Any) -> Any:
        self.step("call")
        try:
            async with asyncio.timeout(self.timeout):
                answer = await self._exchange(self.write(request))
        except TimeoutError:
            raise broken("Deadline Exceeded", grpc.StatusCode.DEADLINE_EXCEEDED) from None
        self.step("answer")
        return self.read(answer)

    async def _exchange(self, request: bytes) -> bytes:
        network = self.network
        await network.travel(self.process.machine)
        if network.roll(network.weather.late):
            delay = network.chance.random() * 40.0
            asyncio.get_running_loop().call_later(delay, self._arrive_late, request)
            await network.nothing()
        if network.roll(network.weather.lost):
            await network.nothing()
        return await self._answer(network.deliver(self, request))

    def _arrive_late(self, request: bytes) -> None:
        if self.network.server is not None:
            self.network.server.handle(self.path, self.process.identity, self.metadata, request)

    async def _answer(self, handling: Handling) -> bytes:
        """What the server answers, unless that is lost: before it is ready, or on the way back."""
        network = self.network
        try:
            if network.roll(network.weather.unheard):
                patience = network.chance.random() * network.chance.choice((0.01, 0.1, 20.0))
                await asyncio.wait([handling.outcome], timeout=patience)
                await network.nothing()
            answer: bytes = await asyncio.shield(handling.outcome)
        finally:
            network.call_off(handling)
        await network.travel(self.process.machine)
        return answer

    async def send(self, requests: AsyncIterator[Any]) -> Any:
        self.step("call")
        try:
            async with asyncio.timeout(self.timeout):
                answer = await self._send(requests)
        except TimeoutError:
            raise broken("Deadline Exceeded", grpc.StatusCode.DEADLINE_EXCEEDED) from None
        self.step("answer")
        return self.read(answer)

    async def _send(self, requests: AsyncIterator[Any]) -> bytes:
        network, queue = self.network, asyncio.Queue[bytes]()
        await network.travel(self.process.machine)
        cut = network.chance.randrange(8) if network.roll(network.weather.cut) else -1
        handling, sent = network.deliver(self, queue), 0
        try:
            async for request in requests:
                if handling.outcome.done():
                    break
                if sent == cut:
                    if sent > 1 and network.roll(0.2):
                        break  # the sender ended early, and said so
                    await network.nothing()
                self.step("send")
                await network.travel(self.process.machine)
                queue.put_nowait(self.write(request))
                sent += 1
            queue.put_nowait(END)
        except (aio.AioRpcError, asyncio.CancelledError):
            network.call_off(handling)
            raise
        except Exception:  # gRPC cancels a call whose requests cannot be read
            network.call_off(handling)
            raise asyncio.CancelledError from None
        return await self._answer(handling)


class Receiving:
    """A call with a stream of answers."""

    def __init__(self, call: Call, request: Any) -> None:
        self._call, self._request = call, call.write(request)
        self._handling: Handling | None = None
        self._answers = self._received()

    def cancel(self) -> None:
        if self._handling is not None:
            self._call.network.call_off(self._handling)

    async def read(self) -> Any:
        """The next answer, or `EOF`."""
        return await anext(self._answers, aio.EOF)

    async def _received(self) -> AsyncIterator[Any]:
        call, network = self._call, self._call.network
        until = asyncio.get_running_loop().time() + call.timeout
        call.step("call")
        cut, received = network.chance.randrange(8) if network.roll(network.weather.cut) else -1, 0
        while True:
            try:
                async with asyncio.timeout_at(until):
                    await network.travel(call.process.machine)
                    if self._handling is None:
                        self._handling = network.deliver(call, self._request)
                    if received == cut:
                        await network.nothing()
                    answer = await self._handling.next()
            except TimeoutError:
                raise broken("Deadline Exceeded", grpc.StatusCode.DEADLINE_EXCEEDED) from None
            if answer is None:
                return
            call.step("receive")
            received += 1
            yield call.read(answer)
