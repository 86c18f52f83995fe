"""Messages with a piece of a blob, written and read by hand, so that its bytes are not copied once more.

    FetchResponse { Chunk chunk = 1; }  UploadRequest { oneof step { ...; Chunk chunk = 2; } }

A frame has the bytes that protobuf would write for one of these messages with a chunk. In the contract the
data of a chunk stand last, so a frame is a few bytes, and then the data. A peer may write its messages with
any library; a message that is not laid out like a frame is parsed by protobuf.
"""

from shoal.core.errors import BadPayload
from shoal.core.exchange._pb.fed.v1 import blob_service_pb2
from shoal.core.exchange.payload import BlobRef
from shoal.core.exchange.wire.bulk import message_from_bytes, varint
from shoal.core.exchange.wire.tensors import blob_from_pb, checked_chunk, chunk_from_pb
from shoal.core.types import Bytes

LARGE, ENOUGH, FAST = 4, 8 << 20, 5e6
"""How many small frames a large one has; the bytes that a transfer has to move before it shows that its line
is fast, since the first megabytes only fill what buffers bytes on the way; and bytes a second of such a line.
"""
_FETCHED, _SENT = 0x0A, 0x12
"""How the two messages begin: the key of their field `chunk`."""
_OFFSET, _DATA = 0x08, 0x1A
"""The keys of the fields of a chunk."""


class Line:
    """How large the frames to one peer are: of its first transfer small, of any other by how fast the one
    before it was. A frame is all that shows of a transfer's progress, so a slow line gets small ones; on a
    fast one large ones cost less."""

    def __init__(self) -> None:
        self._is_fast = False

    def next(self, at: int, small: int) -> int:
        """The bytes of the frame that starts at byte `at` of its blob. small: those of a small frame.

        Frames begin at multiples of their size, so that all who fetch a blob get the same ones.
        """
        size = LARGE * small if self._is_fast else small
        return size - at % size

    def moved(self, size: int, seconds: float) -> None:
        """A transfer is over, whole or cut."""
        self._is_fast = size >= FAST * seconds and (size >= ENOUGH or self._is_fast)


def fetch_frame(offset: int, data: Bytes) -> bytes:
    """The FetchResponse with these bytes of a blob, which start at `offset`."""
    return _frame(_FETCHED, offset, data)


def upload_frame(offset: int, data: Bytes) -> bytes:
    """The UploadRequest with these bytes of a blob, which start at `offset`."""
    return _frame(_SENT, offset, data)


def fetched(message: bytes, offset: int) -> Bytes:
    """The bytes in a FetchResponse, the first of them expected at `offset`. Raises BadPayload."""
    found: Bytes | None = _chunk(_FETCHED, message, offset)
    if found is None:
        response = message_from_bytes(blob_service_pb2.FetchResponse, message)
        found = chunk_from_pb(response.chunk, offset)
    return found


def upload_start(message: bytes) -> tuple[BlobRef, int]:
    """What the first message of an upload says: the blob, and where its bytes start. Raises BadPayload."""
    request = message_from_bytes(blob_service_pb2.UploadRequest, message)
    if request.WhichOneof("step") != "start":
        raise BadPayload("the first message of an upload must be its start", "send start first")
    return blob_from_pb(request.start.blob), request.start.start


def uploaded(message: bytes, offset: int) -> Bytes:
    """The bytes in a later message of an upload, the first of them expected at `offset`.

    Raises BadPayload.
    """
    found: Bytes | None = _chunk(_SENT, message, offset)
    if found is None:
        request = message_from_bytes(blob_service_pb2.UploadRequest, message)
        if request.WhichOneof("step") != "chunk":
            raise BadPayload("after its start, an upload consists only of chunks")
        found = chunk_from_pb(request.chunk, offset)
    return found


def _frame(key: int, offset: int, data: Bytes) -> bytes:
    fields = bytes((_OFFSET,)) + _number(offset) if offset else b""
    fields += bytes((_DATA,)) + _number(len(data))
    return b"".join((bytes((key,)), _number(len(fields) + len(data)), fields, data))


def _number(value: int) -> bytes:
    """A whole number as protobuf writes it: seven bits a byte, the lowest first."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes((*found, value))


def _chunk(key: int, message: bytes, offset: int) -> memoryview | None:
    """The data of a frame; None if the message is not laid out like one. Raises BadPayload."""
    start = 0
    try:
        size, at = varint(message, 1)
        if message[0] != key or at + size != len(message):
            return None
        if message[at] == _OFFSET:
            start, at = varint(message, at + 1)
        if message[at] != _DATA:
            return None
        size, at = varint(message, at + 1)
    except IndexError:
        return None
    if at + size != len(message):
        return None
    return checked_chunk(start, memoryview(message)[at:], offset)
