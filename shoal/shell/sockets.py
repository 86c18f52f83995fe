"""The connections of this process, which gRPC keeps to itself: found by their ends among the descriptors."""

import asyncio
import ipaddress
import os
import resource
import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from urllib.parse import unquote

from shoal.core.engine import timeouts
from shoal.core.engine.timeouts import Progress

End = tuple[str, int]
"""The address and the port of one end of a connection."""

DESCRIPTORS = "/dev/fd"
LOOKS = 4
"""How often in `STALL` the kernel is asked how much of a transfer has arrived."""
_INFO, _ACKNOWLEDGED = 128, 120
"""Linux: bytes of `struct tcp_info` that are read, and where `tcpi_bytes_acked` is in it."""


def connections() -> Iterator[tuple[socket.socket, End, End]]:
    """The IP connections of this process: a socket that must not be closed, its own end, and the other end.

    gRPC may close a descriptor in the middle of this, and open another under its number.
    """
    for descriptor in descriptors():
        with suppress(OSError, ValueError), as_socket(descriptor) as found:  # ValueError: not an IP socket
            (own_host, own_port, *_), (host, port, *_) = found.getsockname(), found.getpeername()
            yield found, (plain(own_host), own_port), (plain(host), port)


def acknowledged(wanted: Callable[[End], bool]) -> int | None:
    """How many bytes the other ends have confirmed on the connections with a wanted other end.

    None if there are no such connections, or the kernel does not say. Only Linux does.
    """
    total = None
    for found, _, other in connections():
        if wanted(other):
            with suppress(OSError, AttributeError, struct.error):
                info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO)
                (bytes_acked,) = struct.unpack_from("=Q", info, _ACKNOWLEDGED)
                total = (total or 0) + bytes_acked
    return total


@asynccontextmanager
async def while_moving(wanted: Callable[[End], bool]) -> AsyncIterator[Callable[[int], None]]:
    """Around sending something: raises TimeoutError in it once nothing moves for too long.

    Gives a function to call with the number of bytes that gRPC has accepted. What it accepted may take long
    to arrive, and meanwhile it takes no more. So the connections with a wanted other end are asked, too, and
    what they confirm is progress. Most transfers are over before the first such question.
    """
    clock = asyncio.get_running_loop().time
    progress = Progress(clock())

    async def watch() -> None:
        before: int | None = None
        while (left := progress.until() - clock()) > 0.0:
            await asyncio.sleep(min(left, timeouts.STALL / LOOKS))
            now = await asyncio.to_thread(acknowledged, wanted)
            if now is not None and before is not None and now > before:
                progress.moved(now - before, clock())
            before = now
        ends.reschedule(clock())

    async with asyncio.timeout(None) as ends:
        watching = asyncio.create_task(watch())
        try:
            yield lambda size: progress.moved(size, clock())
        finally:
            watching.cancel()


def end_of(peer: str) -> End:
    """The end that gRPC names, such as "ipv6:%5B::1%5D:50051"; ("", 0) for a Unix socket."""
    host, _, port = peer.partition(":")[2].rpartition(":")
    return (plain(unquote(host).strip("[]")), int(port)) if port.isdigit() else ("", 0)


def descriptors() -> Iterable[int]:
    """All that are in use, and maybe others: when none is left, there is none to list them with."""
    try:
        return map(int, os.listdir(DESCRIPTORS))
    except OSError:
        return range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


@contextmanager
def as_socket(descriptor: int) -> Iterator[socket.socket]:
    """A descriptor as a socket, which stays open. Given its kind, Python asks the kernel nothing about it."""
    found = socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, fileno=descriptor)
    try:
        yield found
    finally:
        found.detach()


def plain(host: str) -> str:
    """An address in one form: gRPC calls an IPv4 address on an IPv6 socket by its IPv4 form."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host.partition("%")[0])
        return str(getattr(address, "ipv4_mapped", None) or address)
    return host
