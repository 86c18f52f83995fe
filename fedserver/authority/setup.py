"""`fedserver init`: create the key and the settings of a server. Safe to repeat."""

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from fedserver.addresses import host_and_port
from fedserver.authority.authority import FOLDER, SERVER, Authority, exists, make
from fedserver.config import SETTINGS, read_server
from fedserver.store.identities.audit import Event
from fedserver.store.store import Store
from shoal.core.errors import ConfigError, StorageFault
from shoal.core.identity.joining import check_name
from shoal.shell import disk

HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9-]{1,63})*")
PORT, JOIN_PORT = 50051, 50052
HEADER = "# Created by `fedserver init` for `fedserver up`. Command-line options override this file.\n"


@dataclass(frozen=True)
class Made:
    """made: the files that this call created; none: everything existed. join_listen: where devices join."""

    federation: str
    hosts: tuple[str, ...]
    listen: str
    join_listen: str
    made: tuple[str, ...]


def init(
    state: Path, hosts: Sequence[str], listen: str | None, join_listen: str | None, federation: str
) -> Made:
    """Create what is missing in a state folder.

    Raises StorageFault, and ConfigError, also while a server uses the folder.
    """
    for host in hosts:
        _check_host(host)
    for name, address in (("--listen", listen), ("--join-listen", join_listen)):
        if address is not None:
            host_and_port(name, address)
    check_name(federation, "a federation")
    if not hosts and not (state / SETTINGS).is_file():
        raise ConfigError("no --host is given", "give the name or address at which devices reach this server")
    os.umask(0o077)
    if exists(state) and (state / SETTINGS).is_file():
        return _found(state, ())
    store = Store(state, read_server({"state": state}).elsewhere)
    try:
        made = [] if (state / SETTINGS).is_file() else [_write(state, hosts, listen, join_listen)]
        if not exists(state):
            if store.identities.registry.all():
                raise StorageFault(
                    f"the server's key is gone from {state}, and devices have joined under it",
                    "restore the folder from a backup; to start over, give another --state",
                )
            store.identities.audit.note(Event.INIT, federation=federation)
            make(state, federation)
            made.append(f"{FOLDER}/{SERVER}")
    finally:
        store.close()
    return _found(state, tuple(made))


def _found(state: Path, made: tuple[str, ...]) -> Made:
    config = read_server({"state": state})
    authority = Authority.open(state)
    return Made(authority.federation, config.hosts, config.listen, config.join_listen, made)


def _write(state: Path, hosts: Sequence[str], listen: str | None, join_listen: str | None) -> str:
    """Write the settings file. A server whose hosts are all loopback addresses listens on loopback only."""
    anywhere = "127.0.0.1" if all(map(_is_loopback, hosts)) else "0.0.0.0"  # noqa: S104 - every call needs a certificate
    settings = {
        "state": ".",
        "listen": listen or f"{anywhere}:{PORT}",
        "join_listen": join_listen or f"{anywhere}:{JOIN_PORT}",
        "hosts": list(hosts),
    }
    disk.write(state / SETTINGS, (HEADER + yaml.safe_dump(settings, sort_keys=False)).encode())
    return SETTINGS


def _check_host(host: str) -> None:
    """Raises ConfigError for what is neither a host name nor an address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not HOST.fullmatch(host):
            raise ConfigError(
                f"{host[:80]!r} is neither a host name nor an address",
                "give a form like --host shoal.example.org",
            ) from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
