"""How this device reaches its server: under its identity over TLS, or in plain text on one machine."""

from dataclasses import dataclass

from fedclient.config import ClientConfig, host_of
from fedclient.identity.keyring import Identity, Keyring
from fedclient.store.state import DeviceFolder
from shoal.core.errors import ConfigError

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Access:
    """identity: None for plain text. server: "host:port", None for what the identity says.

    device: the name to go by; None: none is given.
    """

    identity: Identity | None
    server: str | None
    device: str | None

    @property
    def address(self) -> str:
        return self.server or (self.identity.address if self.identity else "")


def access(settings: ClientConfig) -> Access:
    """What settings and folder say together.

    Raises ConfigError where they differ, or where the device has not joined and plain text is not allowed.
    """
    if settings.insecure_loopback:
        return Access(None, _loopback(settings.server), settings.device)
    folder = DeviceFolder(settings.state)
    identity = Keyring(folder.identity).identity()
    if identity is None:
        raise ConfigError(
            f"there is no identity in {folder.root}: this device has not joined",
            "give `fedclient join` the line that `fedserver token create` printed on the server; "
            "plain text, to this machine alone, needs `insecure_loopback: true`",
        )
    if settings.device not in (None, identity.device):
        raise ConfigError(
            f"this is device {identity.device} by its identity, and {settings.device} by the settings",
            "leave `device` out, or give the other device's folder with --state",
        )
    if settings.server is not None:
        host_of(settings.server)
    return Access(identity, settings.server, identity.device)


def _loopback(server: str | None) -> str:
    if server is None:
        raise ConfigError("no server is given", "set `server: host:port`, or use --server")
    host = host_of(server)
    if host not in LOOPBACK:
        raise ConfigError(
            f"{host} is another machine, and plain text stays on this one",
            "leave `insecure_loopback` out, and join the server's federation: fedclient join",
        )
    return server
