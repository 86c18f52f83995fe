"""The server process: open the state folder, serve calls, and stop cleanly."""

import asyncio
import contextlib
import logging
import os
import resource
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedserver.authority.authority import Authority
from fedserver.authority.operator_accounts import OperatorAccounts
from fedserver.authority.peers import Peers
from fedserver.config import ServerConfig
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.device_api import SOFTWARE
from fedserver.ha.standby import stand_by
from fedserver.rpc.channel import SOCKET
from fedserver.rpc.server import Listeners, listen
from fedserver.rpc.tls import Access
from fedserver.store.engines import Elsewhere
from fedserver.store.identities.audit import Event
from fedserver.store.store import Storage, own
from fedserver.telemetry.metrics import metrics
from fedserver.telemetry.tracing import tracing
from shoal.core.errors import BucketAway, ConfigError, DatabaseLost, NotLeader, StorageFault
from shoal.shell.disk import settle, storing, temporary

log = logging.getLogger("shoal.server")

MAX_DESCRIPTORS = 1 << 20
"""Open files and connections: more than any server has memory for."""
POLL_SECONDS = 1.0
"""Seconds between two attempts of a server that stands by to lead."""
ADDRESS, JOIN = "address", "join-address"
"""The files in the state folder with the addresses at which devices call and join."""


async def serve(config: ServerConfig, announce: Callable[[str, str], None]) -> None:
    """Serve until SIGTERM or SIGINT. announce: called with the addresses at which devices call and join.

    Raises ConfigError if the server cannot start, StorageFault if the disk fails. The state folder is then as
    intact as after any other stop, and the next start continues from it. With a database elsewhere, the
    server stands by while another one leads; when it loses its session, it stands by again.
    """
    os.umask(0o077)  # only this user may read the state folder
    _allow_descriptors()
    stop = _stop_signal()
    authority = None if config.insecure_loopback else Authority.open(config.state)
    if config.elsewhere is None:
        coordinator = await Coordinator.open(config.state, config.cadence)
        await _lead(coordinator, config, authority, stop, announce)
        return
    with contextlib.closing(own(config.state)):
        while not stop.done():
            try:
                leading, config = await _until_leading(config, config.elsewhere, authority, stop, announce)
                if leading is not None:
                    log.info("this server leads")
                    await _lead(leading, config, authority, stop, announce)
            except DatabaseLost as lost:
                log.error("this server leads no more: %s", lost)


async def _until_leading(
    config: ServerConfig,
    elsewhere: Elsewhere,
    authority: Authority | None,
    stop: "asyncio.Future[None]",
    announce: Callable[[str, str], None],
) -> tuple[Coordinator | None, ServerConfig]:
    """Stand by until no other server leads; None once this one is to stop. Returns the settings with the
    ports that it has, which stay the same when it leads."""
    standby, said = None, ""
    try:
        while not stop.done():
            try:
                return await Coordinator.open(config.state, config.cadence, elsewhere), config
            except (NotLeader, DatabaseLost, BucketAway) as error:
                if standby is None:
                    socket = config.state / SOCKET
                    standby = await stand_by(config.listen, config.join_listen, socket, authority)
                    config = _at_ports(config, standby.port, standby.join_port)
                    announce(config.listen, config.join_listen if standby.join_port else "")
                if str(error) != said:
                    said = str(error)
                    log.info("this server stands by: %s", said)
                await asyncio.wait([stop], timeout=POLL_SECONDS)
    finally:
        if standby is not None:
            await standby.stop()
    return None, config


def _at_ports(config: ServerConfig, port: int, join_port: int) -> ServerConfig:
    """The settings with these ports in place of any that is free."""

    def at(address: str, found: int) -> str:
        return f"{address.rpartition(':')[0]}:{found}" if found else address

    return replace(config, listen=at(config.listen, port), join_listen=at(config.join_listen, join_port))


async def _lead(
    coordinator: Coordinator,
    config: ServerConfig,
    authority: Authority | None,
    stop: "asyncio.Future[None]",
    announce: Callable[[str, str], None],
) -> None:
    """Serve devices and operators. Raises what broke the coordinator, or ended its session."""
    listeners, lost = None, coordinator.storage.lost
    try:
        access = None if authority is None else await access_of(coordinator.storage, authority, config)
        socket = config.state / SOCKET
        listeners = await listen(coordinator, config.listen, socket, access, config.addresses)
        facts = {"software": SOFTWARE, "address": listeners.address, "plain_text": config.insecure_loopback}
        await coordinator.storage.note(Event.START, **facts)
        _write_address(config.state / ADDRESS, listeners.address)
        _write_address(config.state / JOIN, listeners.join_address)
        if access is not None and access.operators.address:
            log.info("operators connect at %s", access.operators.address)
        with (
            metrics(coordinator, config.metrics, listeners.places),
            tracing(coordinator.meter, config.traces),
        ):
            announce(listeners.address, listeners.join_address)
            ends: list[asyncio.Future[Any]] = [stop, coordinator.broken, lost]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        broken = coordinator.broken.result() if coordinator.broken.done() else None
        is_over = lost.done() or isinstance(broken, DatabaseLost)  # calls that are open can bring nothing
        await _end(coordinator, listeners, config, 0.0 if is_over else config.cadence.grace)
    if lost.done():
        raise lost.result()
    if broken is not None:
        raise broken


def _allow_descriptors() -> None:
    """Raise the limit of open files and connections as far as this user may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


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


async def _end(
    coordinator: Coordinator, listeners: Listeners | None, config: ServerConfig, grace: float
) -> None:
    """Accept no new calls, answer those that wait, let those in progress finish, and store the rest."""
    log.info("stopping")
    coordinator.stop_serving()
    if listeners is not None:
        await listeners.stop_accepting()
        await listeners.stop(grace)
    with contextlib.suppress(StorageFault):
        await coordinator.storage.note(Event.STOP)
    await coordinator.close()
    for name in (ADDRESS, JOIN, SOCKET):
        (config.state / name).unlink(missing_ok=True)


def _write_address(path: Path, address: str) -> None:
    if address:
        with storing(path), temporary(path.parent / "tmp") as file:
            file.write(f"{address}\n".encode())
            settle(file, path)


async def access_of(storage: Storage, authority: Authority, config: ServerConfig) -> Access:
    """What the listeners need for TLS. Raises ConfigError."""
    if not config.hosts:
        raise ConfigError("fedserver.yaml has no hosts", "add `hosts: [shoal.example.org]`")
    return Access(
        await Peers.open(storage, authority),
        config.join_listen,
        config.hosts[0],
        await OperatorAccounts.open(storage, authority),
        config.operator_listen,
    )
