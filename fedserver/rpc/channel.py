"""How an operator's program reaches a server: by the Unix socket in its state folder, or by TLS.

The folder of an operator's certificate is made by `fedserver operator add`:

    key.pem   certificate.pem   server.pem     the key, and what gets it through TLS; the server's certificate
    operator.json                              who this is, and where the server is; written last
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc

from shoal.core.engine.timeouts import CONNECTION
from shoal.core.errors import ConfigError, Unavailable
from shoal.core.identity.joining import TLS_NAME
from shoal.shell import disk

SOCKET = "operator.sock"
"""The name of the operators' socket in the state folder."""
CARD, KEY, CERTIFICATE, SERVER = "operator.json", "key.pem", "certificate.pem", "server.pem"
HINT = "on the server's machine, run: fedserver operator add"
ANSWER_BYTES = 64 << 20
"""The largest answer to an operator: a list of some 250,000 devices."""
OPTIONS = (
    ("grpc.max_receive_message_length", ANSWER_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
REMOTE_OPTIONS = (
    *OPTIONS,
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", int(CONNECTION * 1000)),
    ("grpc.use_local_subchannel_pool", 1),  # two certificates in one process never share a connection
    ("grpc.ssl_target_name_override", TLS_NAME),
)


@dataclass(frozen=True)
class Card:
    """What is in `operator.json`. address: of the server, "HOST:PORT"."""

    name: str
    role: str
    address: str


def is_remote(folder: Path) -> bool:
    """Whether this is the folder of an operator's certificate, and not a server's state folder."""
    return (folder / CARD).is_file()


def write_folder(folder: Path, card: Card, key: bytes, certificate: bytes, server: bytes) -> None:
    """Create the folder of an operator's certificate, for this user only. Raises StorageFault."""
    with disk.storing(folder):
        folder.mkdir(mode=0o700, parents=True)
    disk.write(folder / KEY, key, mode=0o600)
    disk.write(folder / CERTIFICATE, certificate)
    disk.write(folder / SERVER, server)
    disk.write(folder / CARD, (json.dumps(asdict(card), indent=2) + "\n").encode())


def read_card(folder: Path) -> Card:
    """Raises ConfigError for a folder that is not one of an operator's certificate."""
    try:
        found = json.loads((folder / CARD).read_bytes())
        return Card(str(found["name"]), str(found["role"]), str(found["address"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"{folder} is not the folder of an operator's certificate", HINT) from None


def connect(folder: Path) -> grpc.Channel:
    """A channel to the server: of this state folder, or the one that a certificate in this folder is for.

    Raises ConfigError for a certificate that cannot be used.
    """
    if not is_remote(folder):
        return grpc.insecure_channel(f"unix:{folder / SOCKET}", OPTIONS)
    card = read_card(folder)
    try:
        key, own, roots = ((folder / name).read_bytes() for name in (KEY, CERTIFICATE, SERVER))
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}", f"{HINT} {card.name}") from None
    return grpc.secure_channel(card.address, grpc.ssl_channel_credentials(roots, key, own), REMOTE_OPTIONS)


def away(folder: Path) -> Unavailable:
    """The error of a call that has reached no server."""
    if is_remote(folder):
        return Unavailable(
            f"no server answers operators at {read_card(folder).address}",
            "is it running, with operator_listen, and has its key not changed since this folder was made?",
        )
    return Unavailable(f"no server is running on {folder}", f"start one with: fedserver up --state {folder}")


def wait_for(folder: Path, patience: float) -> None:
    """Return as soon as a server can be reached over TLS. Raises Unavailable after `patience` seconds."""
    with connect(folder) as channel:
        try:
            grpc.channel_ready_future(channel).result(patience)
        except grpc.FutureTimeoutError:
            raise away(folder) from None
