"""The life of the server process: take the state folder, listen, and end without a loose end."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedcore.shell.disk import settle, storing, temporary
from fedserver.config import ServerConfig
from fedserver.coordinator import Coordinator
from fedserver.rpc.client import SOCKET
from fedserver.rpc.server import Listeners, listen

log = logging.getLogger("shoal.server")

ADDRESS = "address"
"""The file in the state folder that says where devices call."""


async def serve(config: ServerConfig, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. announce: told the address as soon as devices can call.

    Raises ConfigError where it cannot start, StorageFault when the disk gives way: the state folder is then
    as good as after any other stop, and the next start goes on from there.
    """
    os.umask(0o077)  # what lies in the state folder is for this user alone
    stop = _stop_signal()
    coordinator = await Coordinator.open(config.state, config.cadence)
    listeners = None
    try:
        listeners = await listen(coordinator, config.listen, config.state / SOCKET)
        _write_address(config.state, listeners.address)
        announce(listeners.address)
        ends: list[asyncio.Future[Any]] = [stop, coordinator.broken]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _end(coordinator, listeners, config)
    if coordinator.broken.done():
        raise coordinator.broken.result()


async def _end(coordinator: Coordinator, listeners: Listeners | None, config: ServerConfig) -> None:
    """No new calls; those that wait are answered, those that work may end, and the rest is on disk."""
    log.info("stopping")
    coordinator.stop_serving()
    if listeners is not None:
        await listeners.stop_accepting()
        await listeners.stop(config.cadence.grace)
    await coordinator.close()
    for name in (ADDRESS, SOCKET):
        (config.state / name).unlink(missing_ok=True)


def _stop_signal() -> asyncio.Future[None]:
    """Done at the first SIGTERM or SIGINT; a second one ends the process as it would any other."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()

    def caught() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        with contextlib.suppress(asyncio.InvalidStateError):
            stop.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, caught)
    return stop


def _write_address(state: Path, address: str) -> None:
    with storing(state), temporary(state / "tmp") as file:
        file.write(f"{address}\n".encode())
        settle(file, state / ADDRESS)
