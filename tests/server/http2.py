"""HTTP/2 written by hand, for callers that open calls and never send a message (RFC 9113, RFC 7541)."""

import asyncio
import ssl
import struct
from collections.abc import Iterable
from contextlib import suppress

from tests.waiting import HANG

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING = 0, 1, 4, 6
END_STREAM, END_HEADERS, ACK = 1, 4, 1


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return struct.pack("!I", len(body))[1:] + struct.pack("!BBI", kind, flags, stream) + body


def headers(path: str) -> bytes:
    """The headers of a call of gRPC, without compression."""

    def text(value: str) -> bytes:
        return bytes([len(value)]) + value.encode()

    found = b"\x83\x87\x04" + text(path) + b"\x01" + text("shoal") + b"\x0f\x10" + text("application/grpc")
    return found + b"\x00" + text("te") + text("trailers")


def opened(path: str, stream: int) -> bytes:
    """The beginning of a call: its headers, and no message."""
    return frame(HEADERS, END_HEADERS, stream, headers(path))


def call(path: str) -> bytes:
    """All that a client sends for one call with an empty request."""
    request = frame(DATA, END_STREAM, 1, b"\0" * 5)
    return PREFACE + frame(SETTINGS, 0, 0, b"") + opened(path, 1) + request


class Caller:
    """A connection on which calls are opened. received: all bytes that the server has sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.received = b""
        self._taking = asyncio.create_task(self._take(reader))

    @classmethod
    async def connect(cls, address: str, context: ssl.SSLContext) -> "Caller":
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), ssl=context))

    async def open(self, paths: Iterable[str]) -> None:
        """Open a call of each path, and wait until the server has read that, or has closed the connection."""
        calls = b"".join(opened(path, 2 * number + 1) for number, path in enumerate(paths))
        ping = frame(PING, 0, 0, b"all read")
        self._writer.write(PREFACE + frame(SETTINGS, 0, 0, b"") + calls + ping)
        async with asyncio.timeout(HANG):
            while frame(PING, ACK, 0, b"all read") not in self.received and not self.closed:  # noqa: ASYNC110 -- no event tells it
                await asyncio.sleep(0.005)

    async def _take(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                self.received += data

    @property
    def closed(self) -> bool:
        """Whether the server has closed the connection."""
        return self._taking.done()

    def close(self) -> None:
        self._taking.cancel()
        self._writer.transport.abort()
