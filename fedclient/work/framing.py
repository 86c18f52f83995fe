"""Messages in a pipe: each with its length before it."""

from shoal.core.errors import BadPayload

LENGTH = 4
"""Bytes of the big-endian number before each message in a pipe."""
MAX_MESSAGE = 64 << 20


def framed(data: bytes) -> bytes:
    """`data` as it goes through a pipe."""
    return len(data).to_bytes(LENGTH, "big") + data


def length_of(header: bytes) -> int:
    """How many bytes follow. Raises BadPayload for a message that is too long."""
    length = int.from_bytes(header, "big")
    if length > MAX_MESSAGE:
        raise BadPayload(f"a message of {length} bytes in the pipe", f"at most {MAX_MESSAGE} are taken")
    return length
