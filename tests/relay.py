"""A line between two processes of this machine that can be slow, silent, or cut.

Bytes are read from one side only as they are let through to the other, and little is held in between, so that
a sender meets the back-pressure of a real slow line.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PIECE, HELD = 1 << 13, 1 << 17
"""Bytes that go through at once, and that each socket of the line may hold: two of the packets that loopback
has, for with less TCP waits for its timers."""


class Relay:
    """address: where to call instead. rate: bytes a second in each direction; None: as fast as it goes.

    open: cleared, nothing goes through, and neither side knows. accepted: connections so far. sent: bytes
    that went to the target; received: bytes that came from it.
    """

    def __init__(self, target: str) -> None:
        self._host, _, self._port = target.rpartition(":")
        self.address = ""
        self.rate: float | None = None
        self.open = asyncio.Event()
        self.open.set()
        self.accepted = self.sent = self.received = 0
        self._ends: set[asyncio.StreamWriter] = set()

    def fall_silent(self) -> None:
        """Nothing goes through the connections that there are, indefinitely; new ones are as good as any."""
        self.open.clear()
        self.open = asyncio.Event()
        self.open.set()

    def cut(self) -> None:
        """Reset every connection that there is."""
        for end in self._ends:
            end.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, int(self._port), limit=PIECE)
        except OSError:
            writer.transport.abort()
            return
        for end in (writer, far_writer):
            line: socket.socket = end.get_extra_info("socket")
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, HELD)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, HELD)
            end.transport.set_write_buffer_limits(PIECE)
            self._ends.add(end)
        try:
            await asyncio.gather(self._pass(reader, far_writer, up=True), self._pass(far_reader, writer))
        finally:
            for end in (writer, far_writer):
                self._ends.discard(end)
                end.close()

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, up: bool = False) -> None:
        clock, is_open = asyncio.get_running_loop().time, self.open
        with contextlib.suppress(ConnectionError):
            while piece := await source.read(PIECE):
                began = clock()
                await is_open.wait()
                self.sent += len(piece) if up else 0
                self.received += 0 if up else len(piece)
                sink.write(piece)
                await sink.drain()
                if self.rate is not None:
                    await asyncio.sleep(began + len(piece) / self.rate - clock())
        sink.close()


@asynccontextmanager
async def relay(target: str) -> AsyncIterator[Relay]:
    """A line to "host:port" of this machine, until the end of the block."""
    made = Relay(target)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, limit=PIECE)
    host, port = server.sockets[0].getsockname()
    made.address = f"{host}:{port}"
    try:
        yield made
    finally:
        server.close()
        made.cut()
