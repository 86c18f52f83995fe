"""The names and addresses of servers and gateways, as they stand in their certificates."""

import ipaddress
import re

from shoal.core.errors import ConfigError

HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9-]{1,63})*")


def check_host(host: str) -> None:
    """Raises ConfigError for what is neither a host name nor an address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not HOST.fullmatch(host):
            raise ConfigError(
                f"{host[:80]!r} is neither a host name nor an address",
                "give a form like --host shoal.example.org",
            ) from None
