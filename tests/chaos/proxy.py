"""The network between one device and the server: it can be slow, silent, cut or damaged, at a given byte.

It knows nothing of what it carries, so it does the same to plain text and to TLS.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

SEGMENT, ON_THE_WAY = 16 << 10, 64
"""Bytes that are passed on at a time, and how many such segments may be on the way in one direction."""
UP, DOWN = "up", "down"
Segments = asyncio.Queue[tuple[float, bytes]]


@dataclass
class Trap:
    """Springs when byte number `at`, counted from the proxy's beginning, is about to pass in a direction.

    The bytes before it are delivered. The action gets the connection, and the bytes from that one on; what it
    returns goes on in their place.
    """

    way: str
    at: int
    action: Callable[["Connection", bytes], bytes]
    sprung: asyncio.Event = field(default_factory=asyncio.Event)


class Proxy:
    """target: where the server is now. carried: bytes that were passed on, by direction.

    latency: seconds that a byte is on the way. rate: bytes a second in each direction, 0: no limit.
    refusing: new connections are reset at once.
    """

    def __init__(self, target: Callable[[], tuple[str, int]]) -> None:
        self._target = target
        self.address = ""
        self.carried = {UP: 0, DOWN: 0}
        self._flowing = {UP: asyncio.Event(), DOWN: asyncio.Event()}
        self._traps: list[Trap] = []
        self._connections: dict[Connection, asyncio.Task[None] | None] = {}
        self._listening: asyncio.Server | None = None
        self.heal()

    async def open(self) -> None:
        self._listening = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._listening.sockets[0].getsockname()
        self.address = f"{host}:{port}"

    async def close(self) -> None:
        assert self._listening is not None
        self._listening.close()
        self.heal()
        self.cut()
        await asyncio.gather(*filter(None, self._connections.values()))

    def heal(self) -> None:
        """From here on it is a good network again."""
        self.latency, self.rate, self.refusing = 0.0, 0.0, False
        self._traps.clear()
        for flowing in self._flowing.values():
            flowing.set()

    def silence(self, *ways: str) -> None:
        """Hold back everything in these directions, until it is healed."""
        for way in ways:
            self._flowing[way].clear()

    def cut(self) -> int:
        """Reset every connection; how many there were."""
        for connection in self._connections:
            connection.reset()
        return len(self._connections)

    def trap(self, way: str, at: int, action: Callable[["Connection", bytes], bytes]) -> Trap:
        """Do something when byte `at` passes."""
        trap = Trap(way, at, action)
        self._traps.append(trap)
        return trap

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.refusing:
                raise ConnectionError
            onward, back = await asyncio.open_connection(*self._target())
        except OSError:
            _reset(writer)
            return
        connection = Connection(writer, back)
        self._connections[connection] = asyncio.current_task()
        try:
            async with asyncio.TaskGroup() as group:
                for way, source in ((UP, reader), (DOWN, onward)):
                    segments = Segments(ON_THE_WAY)
                    group.create_task(self._take(source, segments))
                    group.create_task(self._give(connection, way, segments))
        except* OSError:
            pass  # one of the two ends is gone: so is the connection
        finally:
            connection.reset()
            del self._connections[connection]

    async def _take(self, source: asyncio.StreamReader, segments: Segments) -> None:
        """Read until the end, which is an empty segment."""
        data = b"first"
        while data:
            data = await source.read(SEGMENT)
            await segments.put((asyncio.get_running_loop().time() + self.latency, data))

    async def _give(self, connection: "Connection", way: str, segments: Segments) -> None:
        sink, clock = connection.ends[way], asyncio.get_running_loop().time
        while True:
            due, data = await segments.get()
            await asyncio.sleep(max(0.0, due - clock(), len(data) / self.rate if self.rate else 0.0))
            over = not data
            data = self._spring(connection, way, data)
            await self._flowing[way].wait()
            if over:
                connection.half_close(way)
                return
            if way not in connection.closed and not sink.is_closing():
                self._pass_on(sink, way, data)
                await sink.drain()

    def _spring(self, connection: "Connection", way: str, data: bytes) -> bytes:
        """What is passed on of these bytes, after the traps that they run into."""
        for trap in [trap for trap in self._traps if trap.way == way]:
            ahead = max(0, trap.at - self.carried[way])
            if ahead < len(data):
                self._traps.remove(trap)
                self._pass_on(connection.ends[way], way, data[:ahead])
                data = trap.action(connection, data[ahead:])
                trap.sprung.set()
        return data

    def _pass_on(self, sink: asyncio.StreamWriter, way: str, data: bytes) -> None:
        sink.write(data)
        self.carried[way] += len(data)


class Connection:
    """One connection through the proxy. ends: whom a direction leads to. closed: directions that are over."""

    def __init__(self, device: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.ends = {UP: server, DOWN: device}
        self.closed: set[str] = set()

    def reset(self) -> None:
        """Both ends hear that it was cut, and lose what they had not read."""
        for writer in self.ends.values():
            _reset(writer)

    def half_close(self, way: str) -> None:
        """Nothing more comes in this direction, in good order; the other one goes on."""
        self.closed.add(way)
        with contextlib.suppress(OSError):
            self.ends[way].write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


# -- what a trap may do --------------------------------------------------------------------------------------


def reset(connection: Connection, data: bytes) -> bytes:
    connection.reset()
    return b""


def half_close(way: str) -> Callable[[Connection, bytes], bytes]:
    """End one direction in good order, and swallow what comes after."""

    def action(connection: Connection, data: bytes) -> bytes:
        connection.half_close(way)
        return b""

    return action


def flip(bit: int) -> Callable[[Connection, bytes], bytes]:
    """Damage one bit of the byte."""
    return lambda connection, data: bytes([data[0] ^ 1 << bit]) + data[1:]


def silence(proxy: Proxy, *ways: str) -> Callable[[Connection, bytes], bytes]:
    """Hold back everything in these directions, from the byte on, until the proxy is healed."""

    def action(connection: Connection, data: bytes) -> bytes:
        proxy.silence(*ways)
        return data

    return action
