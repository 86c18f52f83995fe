"""What a gateway has on its disk: its key and certificate, the authorities that it trusts, its settings."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from fedserver.addresses import host_and_port
from fedserver.authority.answers import GatewayAdded
from fedserver.authority.issuing import Key
from fedserver.authority.roots import KeyPair, load_pair, save_pair
from fedserver.config import check_addresses
from shoal.core.errors import ConfigError
from shoal.core.identity.certificates import certificate, new_key
from shoal.shell import disk
from shoal.shell.config import MAX_TEXT, parse

PAIR, AUTHORITIES, SETTINGS = "gateway.pem", "authorities.pem", "gateway.yaml"
HEADER = "# Created by `fedserver gateway add` for `fedserver gateway up`.\n"
LARGEST = 1 << 16


@dataclass(frozen=True)
class GatewaySettings:
    """servers: which this gateway calls, "host:port"; one of them leads. listen: where devices call."""

    servers: tuple[str, ...]
    listen: str = "0.0.0.0:50051"

    def __post_init__(self) -> None:
        if not self.servers:
            raise ConfigError("servers is empty", "write the addresses of the servers: [a.example.org:50051]")
        check_addresses("servers", self.servers)
        host_and_port("listen", self.listen)


class GatewayFolder:
    """The files of a gateway, in a folder that only its user reads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def key(self) -> Key:
        """A new key for the certificate that is asked for, once the folder is there. Raises StorageFault.

        It is stored with the certificate: the server takes no key twice, so one of an attempt that failed
        would be of no use.
        """
        os.umask(0o077)
        disk.make_folder(self._folder)
        return new_key()

    def fill(self, key: Key, added: GatewayAdded, listen: str | None) -> None:
        """Write what the server has answered. The settings of a folder that was filled before stay."""
        save_pair(KeyPair(key, certificate(added.certificate)), self._folder / PAIR)
        disk.write(self._folder / AUTHORITIES, added.authorities)
        if not (self._folder / SETTINGS).exists():
            found = {"servers": list(added.servers), **({"listen": listen} if listen else {})}
            disk.write(self._folder / SETTINGS, (HEADER + yaml.safe_dump(found, sort_keys=False)).encode())

    def settings(self, listen: str | None = None) -> GatewaySettings:
        """Raises ConfigError."""
        path = self._folder / SETTINGS
        try:
            with path.open("rb") as file:
                text = file.read(MAX_TEXT + 1).decode()
        except UnicodeDecodeError:
            raise ConfigError(f"{path} is not text in UTF-8", "write it again, or restore it") from None
        except OSError as error:
            raise ConfigError(
                f"{path}: {error.strerror}", "make the folder on the server, with: fedserver gateway add"
            ) from None
        found = parse(text, GatewaySettings, str(path))
        return replace(found, listen=listen) if listen else found

    def pair(self) -> KeyPair:
        """Raises ConfigError, StorageFault."""
        return load_pair(self._folder / PAIR)

    def authorities(self) -> bytes:
        """PEM. Raises StorageFault."""
        path = self._folder / AUTHORITIES
        with disk.storing(path):
            return path.read_bytes()[:LARGEST]

    def learn(self, authorities: bytes) -> None:
        """Trust these from the next start on."""
        disk.write(self._folder / AUTHORITIES, authorities)
