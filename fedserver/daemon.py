"""The server process: open the state folder, serve calls, and stop cleanly."""

import asyncio
import contextlib
import logging
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedserver.authority.peers import Peers
from fedserver.authority.roots import Authority
from fedserver.config import ServerConfig
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.device_api import SOFTWARE
from fedserver.metrics import metrics
from fedserver.rpc.client import SOCKET
from fedserver.rpc.server import Listeners, listen
from fedserver.rpc.tls import Access
from fedserver.store.identities.audit import Event
from fedserver.store.store import Storage
from shoal.core.errors import StorageFault
from shoal.shell.disk import settle, storing, temporary

log = logging.getLogger("shoal.server")

MOST_DESCRIPTORS = 1 << 20
"""Open files and connections: more than any server has memory for."""
ADDRESS, JOIN = "address", "join-address"
"""The files in the state folder with the addresses at which devices call and join."""


async def serve(config: ServerConfig, announce: Callable[[str, str], None]) -> None:
    """Serve until SIGTERM or SIGINT. announce: called with the addresses at which devices call and join.

    Raises ConfigError if the server cannot start, StorageFault if the disk fails. The state folder is then as
    intact as after any other stop, and the next start continues from it.
    """
    os.umask(0o077)  # only this user may read the state folder
    _allow_descriptors()
    stop = _stop_signal()
    authority = None if config.insecure_loopback else Authority.open(config.state, config.hosts)
    coordinator = await Coordinator.open(config.state, config.cadence)
    listeners = None
    try:
        access = None if authority is None else await _access(coordinator.storage, authority, config)
        listeners = await listen(coordinator, config.listen, config.state / SOCKET, access)
        facts = {"software": SOFTWARE, "address": listeners.address, "plain_text": config.insecure_loopback}
        await coordinator.storage.identities.note_event(Event.START, **facts)
        _write_address(config.state / ADDRESS, listeners.address)
        _write_address(config.state / JOIN, listeners.join_address)
        with metrics(coordinator, config.metrics, listeners.places):
            announce(listeners.address, listeners.join_address)
            ends: list[asyncio.Future[Any]] = [stop, coordinator.broken]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _end(coordinator, listeners, config)
    if coordinator.broken.done():
        raise coordinator.broken.result()


def _allow_descriptors() -> None:
    """Raise the limit of open files and connections as far as this user may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


async def _end(coordinator: Coordinator, listeners: Listeners | None, config: ServerConfig) -> None:
    """Accept no new calls, answer those that wait, let those in progress finish, and store the rest."""
    log.info("stopping")
    coordinator.stop_serving()
    if listeners is not None:
        await listeners.stop_accepting()
        await listeners.stop(config.cadence.grace)
    with contextlib.suppress(StorageFault):
        await coordinator.storage.identities.note_event(Event.STOP)
    await coordinator.close()
    for name in (ADDRESS, JOIN, SOCKET):
        (config.state / name).unlink(missing_ok=True)


def _stop_signal() -> asyncio.Future[None]:
    """A future that is done at the first SIGTERM or SIGINT. A second signal has its default effect."""
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


def _write_address(path: Path, address: str) -> None:
    if address:
        with storing(path), temporary(path.parent / "tmp") as file:
            file.write(f"{address}\n".encode())
            settle(file, path)


async def _access(storage: Storage, authority: Authority, config: ServerConfig) -> Access:
    """What the listeners need for TLS. The server's own certificate is renewed if necessary."""
    if authority.refresh():
        log.info("the server has a new certificate, which is valid for %s", ", ".join(authority.hosts))
        await storage.identities.note_event(Event.CERTIFICATE_MADE, hosts=list(authority.hosts))
    return Access(await Peers.open(storage, authority), config.join_listen, authority.hosts[0])
