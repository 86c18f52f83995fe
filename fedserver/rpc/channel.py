"""How an operator's program reaches a server: by the Unix socket in its state folder, or by TLS.

The folder of an operator's certificate is made by `fedserver operator add`:

    key.pem   certificate.pem   authorities.pem     the key never leaves the machine where it was made
    operator.json                                   who this is, and where the server is; written last
"""

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import grpc

from shoal.core.engine.timeouts import CONNECTION
from shoal.core.errors import BadPayload, ConfigError, Unavailable
from shoal.shell import disk

SOCKET = "operator.sock"
"""The name of the operators' socket in the state folder."""
CARD, KEY, CERTIFICATE, AUTHORITIES = "operator.json", "key.pem", "certificate.pem", "authorities.pem"
AGAIN = "on the server's machine, run: fedserver operator add"
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
)


@dataclass(frozen=True)
class Card:
    """What is in `operator.json`. address: of the server, "HOST:PORT". expires: clock time."""

    name: str
    role: str
    address: str
    expires: float


def is_remote(folder: Path) -> bool:
    """Whether this is the folder of an operator's certificate, and not a server's state folder."""
    return (folder / CARD).is_file()


def write_folder(folder: Path, card: Card, key: bytes, certificate: bytes, authorities: bytes) -> None:
    """Create the folder of an operator's certificate, for this user only. Raises StorageFault."""
    with disk.storing(folder):
        folder.mkdir(mode=0o700, parents=True)
    disk.write(folder / KEY, key, mode=0o600)
    disk.write(folder / CERTIFICATE, certificate)
    disk.write(folder / AUTHORITIES, authorities)
    disk.write(folder / CARD, _written(card))


def replace_certificate(folder: Path, card: Card, certificate: bytes, authorities: bytes) -> None:
    """Put a renewed certificate in the folder. Whenever the machine stops meanwhile, what is there is valid.

    Raises StorageFault.
    """
    disk.write(folder / AUTHORITIES, authorities)
    disk.write(folder / CERTIFICATE, certificate)
    disk.write(folder / CARD, _written(card))


def left(folder: Path) -> float:
    """The part of its lifetime that the certificate in this folder has left. Raises ConfigError."""
    from shoal.core.identity.certificates import certificate  # of many megabytes, which few verbs need

    try:
        found = certificate((folder / CERTIFICATE).read_bytes())
    except (OSError, BadPayload) as error:
        raise ConfigError(f"{folder / CERTIFICATE} cannot be read: {error}", AGAIN) from None
    begin, end = found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp()
    return (end - time.time()) / max(1.0, end - begin)


def _written(card: Card) -> bytes:
    return (json.dumps(asdict(card), indent=2) + "\n").encode()


def read_card(folder: Path) -> Card:
    """Raises ConfigError for a folder that is not one of an operator's certificate."""
    try:
        found = json.loads((folder / CARD).read_bytes())
        texts = str(found["name"]), str(found["role"]), str(found["address"])
        return Card(*texts, float(found["expires"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise ConfigError(f"{folder} is not the folder of an operator's certificate", AGAIN) from None


def connect(folder: Path) -> grpc.Channel:
    """A channel to the server: of this state folder, or the one that a certificate in this folder is for.

    Raises ConfigError for a certificate that cannot be used.
    """
    if not is_remote(folder):
        return grpc.insecure_channel(f"unix:{folder / SOCKET}", OPTIONS)
    card = read_card(folder)
    # A machine that stopped while it renewed the certificate may have the card of the former one.
    if card.expires <= time.time() and left(folder) <= 0.0:
        raise ConfigError(f"the certificate of operator {card.name} has expired", f"{AGAIN} {card.name}")
    try:
        key, own, roots = ((folder / name).read_bytes() for name in (KEY, CERTIFICATE, AUTHORITIES))
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}", f"{AGAIN} {card.name}") from None
    return grpc.secure_channel(card.address, grpc.ssl_channel_credentials(roots, key, own), REMOTE_OPTIONS)


def away(folder: Path) -> Unavailable:
    """The error of a call that has reached no server."""
    if is_remote(folder):
        return Unavailable(
            f"no server answers operators at {read_card(folder).address}",
            "is it running, with operator_listen, and does it still trust the authority of this certificate?",
        )
    return Unavailable(f"no server is running on {folder}", f"start one with: fedserver up --state {folder}")


def wait_for(folder: Path, patience: float) -> None:
    """Return as soon as a server can be reached over TLS. Raises Unavailable after `patience` seconds."""
    with connect(folder) as channel:
        try:
            grpc.channel_ready_future(channel).result(patience)
        except grpc.FutureTimeoutError:
            raise away(folder) from None
