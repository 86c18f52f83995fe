"""The join string: where a device joins, whom it trusts there, and the secret that admits it, in one line."""

import base64
import binascii
import re
from dataclasses import dataclass

from shoal.core.errors import ConfigError

VERSION = "shoal1"
HINT = "copy the whole line that `fedserver token create` printed; it begins with shoal1:"
SHAPE = re.compile(
    r"shoal1:(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]{0,252})):(?P<port>[0-9]{1,5})"
    r":(?P<pin>[A-Za-z0-9_-]{43}):(?P<token>[A-Za-z0-9_-]{8,32}):(?P<secret>[A-Za-z0-9_-]{43})"
)


@dataclass(frozen=True)
class JoinString:
    """A join string. host, port: where devices join. pin: SHA-256 of the public key there. token: its name.

    secret: 32 bytes that are never sent, and never shown by `repr`.
    """

    host: str
    port: int
    pin: bytes
    token: str
    secret: bytes

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return ":".join((VERSION, self.host, str(self.port), _text(self.pin), self.token, _text(self.secret)))

    def __repr__(self) -> str:
        return f"JoinString({self.address}, token {self.token})"


def parse(line: str) -> JoinString:
    """Parse a join string; spaces around it are ignored. Raises ConfigError, without the secret in it."""
    found = SHAPE.fullmatch(line.strip())
    if found is None or not 0 < int(found["port"]) < 1 << 16:
        raise ConfigError("that is not a join string", HINT)
    pin, secret = _bytes(found["pin"]), _bytes(found["secret"])
    return JoinString(found["host"], int(found["port"]), pin, found["token"], secret)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    """Decode 32 bytes from 43 letters. The last letter has two bits too many, which must be zero."""
    try:
        data = base64.urlsafe_b64decode(text + "=")
    except (binascii.Error, ValueError):
        raise ConfigError("that is not a join string", HINT) from None
    if len(data) != 32 or _text(data) != text:
        raise ConfigError("that is not a join string: a letter of it is wrong", HINT)
    return data
