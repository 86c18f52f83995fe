"""How tests wait: for a state, however long a busy machine takes to reach it."""

import asyncio
import itertools
import os
import random
import socket
from collections.abc import Callable

HANG = 240.0 * float(os.environ.get("SHOAL_TEST_PATIENCE", "1"))
"""Seconds after which something has hung. It ends a test that would never end, and measures nothing."""
EPHEMERAL = 32768
"""The first port that the system gives to a program that asks for any, where nothing else is set."""
FIRST, SHARE = 20000, 400
"""The first port of the tests, and how many each worker has."""


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until it is so. Raises TimeoutError, where else the whole suite would wait forever."""
    async with asyncio.timeout(HANG):
        while not condition():  # noqa: ASYNC110 -- a condition may be anything, and nothing signals it
            await asyncio.sleep(0.001)


def _ports() -> "itertools.cycle[int]":
    """The ports of this worker, in an order that another run of the suite beside this one does not have."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 32
    first = FIRST + worker * SHARE
    assert first + SHARE <= EPHEMERAL
    return itertools.cycle(random.sample(range(first, first + SHARE), SHARE))


PORTS = _ports()


def free_port() -> int:
    """A port for a server that must have the same one after a restart.

    The system gives it to no one in between, as it would one of those that it chooses itself: the client's
    end of any connection on this machine has one of those.
    """
    for port in PORTS:
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("unreachable: a cycle has no end")
