"""Where this device's server is, and as whom to call it: by its identity over TLS, or in plain text on one
machine."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedclient.config import ClientConfig, host_of
from fedclient.store.state import DeviceFolder
from shoal.core.errors import ConfigError

if TYPE_CHECKING:
    from fedclient.identity.keyring import Identity

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Endpoint:
    """identity: None for plain text. server: "host:port"; None: the one in the identity.

    device: the name to use; None if none is given.
    """

    identity: "Identity | None"
    server: str | None
    device: str | None

    @property
    def address(self) -> str:
        return self.server or (self.identity.address if self.identity else "")


def endpoint(settings: ClientConfig) -> Endpoint:
    """The endpoint that the settings and the device's folder give together.

    Raises ConfigError if they contradict each other, or if the device has not joined and plain text is not
    allowed.
    """
    if settings.insecure_loopback:
        return Endpoint(None, _loopback(settings.server), settings.device)
    # It loads cryptography, which light devices spare.
    from fedclient.identity.keyring import Keyring, fingerprint_of

    folder = DeviceFolder(settings.state)
    keyring = Keyring(folder.identity)
    identity = keyring.identity()
    if identity is None:
        if (asking := keyring.unanswered()) is None:
            raise _not_joined(folder)
        raise ConfigError(
            f"this device has asked to join and has no answer yet; its key: {fingerprint_of(asking.key)}",
            "an operator may have to compare that key and approve it: fedserver device approve DEVICE; "
            "`fedclient join` waits for it, and goes on if it is given the same join string again",
        )
    if settings.device not in (None, identity.device):
        raise ConfigError(
            f"the identity is that of device {identity.device}, but the settings name {settings.device}",
            "remove `device` from the settings, or give the other device's folder with --state",
        )
    if settings.server is not None:
        host_of(settings.server)
    return Endpoint(identity, settings.server, identity.device)


def check_joined(settings: ClientConfig) -> None:
    """Raise ConfigError early where `endpoint` would, because the device has no identity."""
    folder = DeviceFolder(settings.state)
    if not settings.insecure_loopback and not folder.identity.exists():
        raise _not_joined(folder)


def _not_joined(folder: DeviceFolder) -> ConfigError:
    return ConfigError(
        f"there is no identity in {folder.root}: this device has not joined",
        "run `fedclient join` with the join string that `fedserver token create` printed on the server; "
        "for plain text to a server on this machine, set `insecure_loopback: true`",
    )


def _loopback(server: str | None) -> str:
    if server is None:
        raise ConfigError("no server is given", "set `server: host:port`, or use --server")
    host = host_of(server)
    if host not in LOOPBACK:
        raise ConfigError(
            f"{host} is another machine, and plain text is allowed to this one only",
            "remove `insecure_loopback`, and join the server's federation: fedclient join",
        )
    return server
