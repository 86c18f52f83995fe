"""The connections of this process: those that only bring refused calls are closed.

A refused call costs the server more than its caller, and a caller may send as many of them over one
connection as it likes. A new connection costs the caller more than the server. So after `MAX_REFUSED`
refused calls in a row the connection is closed. gRPC has no call for that: the descriptor of the connection
is found by the address at its other end, and shut down, which gRPC takes for a caller that went away.

A stranger can also open connections until the process has no descriptor left. When most are in use, the
connections that no call has been served on are closed.
"""

import asyncio
import os
import resource
import socket
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Container
from contextlib import suppress

from shoal.shell.sockets import End, connections, end_of

MAX_REFUSED = 16
"""Refused calls in a row on one connection."""
PAUSE = 0.1
"""Seconds between two searches for connections to close; among many descriptors a search takes a while."""
FULL = 0.75
"""The share of the descriptors that may be in use before connections without any served call are closed."""
WATCHED = 1.0
"""Seconds between two looks at how many descriptors are in use."""
REMEMBERED = 65_536
"""Connections whose calls are remembered."""


class Connections:
    """Counts refused calls by connection, and closes connections. `watch` has to run beside it.

    ports: those of this process that accept connections; others are left alone. closed: how many have been
    closed.
    """

    def __init__(self) -> None:
        self.ports: set[int] = set()
        self.closed = 0
        self._refused: Counter[str] = Counter()
        self._served: OrderedDict[str, None] = OrderedDict()
        self._doomed: set[str] = set()
        self._wanted = asyncio.Event()

    def served(self, peer: str) -> None:
        """A call was answered. peer: gRPC's name of the caller, such as "ipv4:10.0.0.7:50051"."""
        self._refused.pop(peer, None)
        self._served[peer] = None
        self._served.move_to_end(peer)
        while len(self._served) > REMEMBERED:
            self._served.popitem(last=False)

    def refused(self, peer: str) -> None:
        """A call was refused."""
        if len(self._refused) >= REMEMBERED:
            self._refused.clear()
        self._refused[peer] += 1
        if self._refused[peer] >= MAX_REFUSED:
            del self._refused[peer]
            self._doomed.add(peer)
            self._wanted.set()

    async def watch(self) -> None:
        """Close what has to be closed, until this is canceled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCHED):
                    await self._wanted.wait()
            self._wanted.clear()
            doomed, self._doomed = self._doomed, set()
            self.closed += await asyncio.to_thread(self._close, doomed)
            await asyncio.sleep(PAUSE)

    def _close(self, doomed: set[str]) -> int:
        ends = set(map(end_of, doomed))
        closed = close(lambda end: end in ends, self.ports) if ends else 0
        if _in_use() > FULL * resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
            served = set(map(end_of, tuple(self._served)))
            closed += close(lambda end: end not in served, self.ports)
        return closed


def close(unwanted: Callable[[End], bool], ports: Container[int]) -> int:
    """Shut down the connections to `ports` of this process from unwanted ends; return how many there were.

    gRPC may close a descriptor in the middle of this, and open another under its number. Then one connection
    too many is cut, and its device makes a new one.
    """
    closed = 0
    for found, (_, own), other in connections():
        if own in ports and unwanted(other):
            with suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)
                closed += 1
    return closed


def _in_use() -> int:
    """About how many descriptors are in use: a new one gets the lowest free number."""
    try:
        descriptor = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return sys.maxsize
    os.close(descriptor)
    return descriptor
