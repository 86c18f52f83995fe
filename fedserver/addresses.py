"""Addresses as settings and options give them: HOST:PORT."""

import re

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


def host_of(header: str) -> str:
    """The name in a Host header, without its port.

    Example:
        >>> host_of("127.0.0.1:50080"), host_of("[::1]:50080"), host_of("evil.example")
        ('127.0.0.1', '[::1]', 'evil.example')
    """
    name, colon, port = header.rpartition(":")
    return (name if colon and port.isdecimal() else header).lower()
