"""The bytes of a row of the database, and their checksum."""

import hashlib
import struct
from collections.abc import Iterable

Value = None | int | float | str | bytes
Place = tuple[str, int]
"""A table, and the number of a row in it."""


def packed(values: Iterable[Value]) -> bytes:
    """The values of a row as bytes, exactly.

    Example:
        >>> unpacked(packed(("flux", 3, 0.5, None, b"x")))
        ('flux', 3, 0.5, None, b'x')
    """
    parts: list[bytes] = []
    for value in values:
        match value:
            case None:
                kind, data = b"n", b""
            case int():
                kind, data = b"i", str(value).encode()
            case float():
                kind, data = b"f", struct.pack("<d", value + 0.0)  # SQLite stores -0.0 as 0.0
            case str():
                kind, data = b"s", value.encode("utf-8", "surrogateescape")
            case _:
                kind, data = b"b", bytes(value)
        parts += (kind, struct.pack("<Q", len(data)), data)
    return b"".join(parts)


def unpacked(data: bytes) -> tuple[Value, ...]:
    """The values of `packed` bytes, which were verified before."""
    values: list[Value] = []
    at = 0
    while at < len(data):
        kind, (size,) = data[at : at + 1], struct.unpack_from("<Q", data, at + 1)
        piece, at = data[at + 9 : at + 9 + size], at + 9 + size
        values.append(_value(kind, piece))
    return tuple(values)


def _value(kind: bytes, piece: bytes) -> Value:
    match kind:
        case b"n":
            return None
        case b"i":
            return int(piece)
        case b"f":
            return float(struct.unpack("<d", piece)[0])
        case b"s":
            return text(piece)
    return piece


def checksum(place: Place, data: bytes) -> bytes:
    """The checksum of a row's bytes. It covers the place, so that no row can pass for another."""
    return hashlib.blake2b(data, digest_size=16, person=b"shoal row", key=f"{place}".encode()[:64]).digest()


def text(data: bytes) -> str:
    """Text of a row, also where it is damaged: then its checksum does not match."""
    return data.decode("utf-8", "surrogateescape")
