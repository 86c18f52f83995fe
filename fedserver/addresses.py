"""Addresses as settings and options give them: HOST:PORT."""

import os
import re
from contextlib import suppress
from pathlib import Path

from shoal.core.errors import ConfigError

FORM = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]{1,253}):([0-9]{1,5})")
HIGHEST = 65535


def host_and_port(name: str, address: str, *, lowest: int = 0) -> tuple[str, int]:
    """The host, as it is written, and the port of the address that the setting `name` has.

    lowest: the lowest port that it may have; 0, where a program listens, stands for any that is free. Raises
    ConfigError. gRPC checks nothing itself: it takes port 443 where none is given, and another one for a
    number that is too high.
    """
    found = FORM.fullmatch(address)
    if found is None:
        raise ConfigError(f"{name}: {address[:300]!r} is not HOST:PORT", "write a form like 127.0.0.1:50051")
    if not lowest <= int(found[2]) <= HIGHEST:
        raise ConfigError(
            f"{name}: {found[2]} in {address!r} is not a port", f"use a port from {lowest} to {HIGHEST}"
        )
    return found[1], int(found[2])


LISTENS = "0A"
"""The state of a socket in /proc/net/tcp."""


def holder_of(port: int) -> str:
    """The process that listens on a port of this machine, for people; "" where the system does not tell, as
    of another user's."""
    found = set()
    with suppress(OSError):
        for table in ("tcp", "tcp6"):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                _, local, _, state, *_, inode = line.split()[:10]
                if state == LISTENS and int(local.rpartition(":")[2], 16) == port:
                    found.add(f"socket:[{inode}]")
    for process in Path("/proc").glob("[0-9]*") if found else ():
        with suppress(OSError):
            if any(os.readlink(each) in found for each in (process / "fd").iterdir()):
                return f"process {process.name} ({(process / 'comm').read_text().strip()})"
    return ""


def host_of(header: str) -> str:
    """The name in a Host header, without its port.

    Example:
        >>> host_of("127.0.0.1:50080"), host_of("[::1]:50080"), host_of("evil.example")
        ('127.0.0.1', '[::1]', 'evil.example')
    """
    name, colon, port = header.rpartition(":")
    return (name if colon and port.isdecimal() else header).lower()
