"""The network that chaos puts between devices and server does what it is set to do, at the right byte."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from tests.chaos.proxy import DOWN, SEGMENT, UP, Proxy, flip, half_close, reset, silence

DATA = bytes(range(256)) * 400


class Server:
    """Echoes what it gets. got: all of it; over: set when the device has nothing more to say."""

    def __init__(self) -> None:
        self.got, self.over = bytearray(), asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(SEGMENT):
                self.got += data
                writer.write(data)
                await writer.drain()
            self.over.set()
        except OSError:
            pass
        finally:
            writer.close()


Steps = Callable[[Proxy, Server, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def play(steps: Steps) -> None:
    """A device, connected to an echoing server through a proxy."""

    async def story() -> None:
        server = Server()
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
        proxy = Proxy(lambda: listening.sockets[0].getsockname())
        await proxy.open()
        reader, writer = await asyncio.open_connection(*proxy.address.split(":"))
        try:
            async with asyncio.timeout(20.0):
                await steps(proxy, server, reader, writer)
        finally:
            writer.close()
            listening.close()
            await proxy.close()

    asyncio.run(story())


def test_a_good_network_passes_everything_on_and_counts_it() -> None:
    async def steps(
        proxy: Proxy, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(DATA)
        writer.write_eof()
        assert await reader.read(-1) == DATA
        assert proxy.carried == {UP: len(DATA), DOWN: len(DATA)}

    play(steps)


@pytest.mark.parametrize("at", [0, 1, SEGMENT, len(DATA) - 1])
def test_a_connection_is_cut_at_byte_k(at: int) -> None:
    async def steps(
        proxy: Proxy, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        trap = proxy.trap(UP, at, reset)
        writer.write(DATA)
        await trap.sprung.wait()
        with pytest.raises(ConnectionResetError):
            await reader.read(-1)
        assert proxy.carried[UP] == at
        assert DATA.startswith(bytes(server.got))

    play(steps)


def test_one_bit_of_one_byte_is_damaged() -> None:
    async def steps(
        proxy: Proxy, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        proxy.trap(UP, 70_000, flip(3))
        writer.write(DATA)
        writer.write_eof()
        back = await reader.read(-1)
        assert [(i, a ^ b) for i, (a, b) in enumerate(zip(DATA, back, strict=True)) if a != b] == [
            (70_000, 8)
        ]

    play(steps)


def test_one_direction_ends_and_the_other_goes_on() -> None:
    async def steps(
        proxy: Proxy, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        proxy.trap(UP, 1000, half_close(UP))
        writer.write(DATA)
        assert await reader.read(-1) == DATA[:1000]
        await server.over.wait()
        writer.write_eof()

    play(steps)


def test_silence_holds_everything_back_until_the_network_is_healed() -> None:
    async def steps(
        proxy: Proxy, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        trap = proxy.trap(UP, 1000, silence(proxy, DOWN))
        writer.write(DATA)
        writer.write_eof()
        await trap.sprung.wait()
        await server.over.wait()
        held = proxy.carried[DOWN]
        await asyncio.sleep(0.1)
        assert proxy.carried[DOWN] == held < len(DATA)
        proxy.heal()
        assert len(await reader.read(-1)) == len(DATA)

    play(steps)


def test_refused_connections_are_reset() -> None:
    async def steps(
        proxy: Proxy, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        proxy.refusing = True
        other, _ = await asyncio.open_connection(*proxy.address.split(":"))
        with pytest.raises(ConnectionResetError):
            await other.read(1)

    play(steps)


def test_bytes_take_as_long_as_they_are_told_to() -> None:
    async def steps(
        proxy: Proxy, server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        proxy.latency = 0.1
        began = time.monotonic()
        writer.write(DATA)
        writer.write_eof()
        assert await reader.read(-1) == DATA
        assert time.monotonic() - began >= 0.2  # there and back

    play(steps)
