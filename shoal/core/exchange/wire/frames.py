"""Messages with a piece of a blob, written and read by hand, so that its bytes are not copied once more.

    FetchResponse { Chunk chunk = 1; ... }  UploadRequest { oneof step { ...; Chunk chunk = 2; } }

A frame has the bytes that protobuf would write for one of these messages with a chunk. In the contract the
data of a chunk stand last, so a frame is a few bytes, and then the data. A peer may write its messages with
any library; a message that is not laid out like a frame is parsed by protobuf.
"""

import zlib

from shoal.core.errors import BadPayload
from shoal.core.exchange._pb.fed.v1 import blob_service_pb2
from shoal.core.exchange.payload import BlobRef
from shoal.core.exchange.wire.bulk import message_from_bytes, varint
from shoal.core.exchange.wire.tensors import blob_from_pb, checked_chunk, chunk_from_pb
from shoal.core.types import Bytes

LARGE, ENOUGH, QUICK = 4, 32, 0.05
"""How many small frames a large one has, after how many small ones the first large one may come, and the
seconds that a small one may take then: the first megabytes only fill what buffers bytes on the way."""
_FETCHED, _SENT = 0x0A, 0x12
"""How the two messages begin: the key of their field `chunk`."""
_ADDRESSED = b"\x12"
"""How a FetchResponse with an address begins."""
MAX_ADDRESS = 4096
_OFFSET, _CRC32, _DATA = 0x08, 0x15, 0x1A
"""The keys of the fields of a chunk."""


def next_size(at: int, moved: int, seconds: float, chunk: int) -> int:
    """How many bytes the next frame of a transfer should have, which starts at byte `at` of its blob.

    moved, seconds: the bytes of this transfer so far, and what they took. chunk: bytes of a small frame. A
    frame is all that shows of a transfer's progress, so a slow line gets small ones; on a fast one large ones
    cost less. Large ones begin at multiples of their size, so that all who fetch a blob get the same.
    """
    fast = moved >= ENOUGH * chunk and seconds * chunk < QUICK * moved
    return LARGE * chunk if fast and at % (LARGE * chunk) == 0 else chunk


def fetch_frame(offset: int, data: Bytes) -> bytes:
    """The FetchResponse with these bytes of a blob, which start at `offset`."""
    return _frame(_FETCHED, offset, data)


def upload_frame(offset: int, data: Bytes) -> bytes:
    """The UploadRequest with these bytes of a blob, which start at `offset`."""
    return _frame(_SENT, offset, data)


def fetch_address(address: str) -> bytes:
    """The FetchResponse that says where the bytes of a blob are."""
    return blob_service_pb2.FetchResponse(address=address).SerializeToString()


def address_in(message: bytes) -> str:
    """The address in a FetchResponse; "" if there is none. Raises BadPayload for one that is too long."""
    if message[:1] != _ADDRESSED:
        return ""
    found = message_from_bytes(blob_service_pb2.FetchResponse, message).address
    if len(found) > MAX_ADDRESS:
        raise BadPayload("the address of a blob is too long", f"send at most {MAX_ADDRESS} characters")
    return found


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
    crc32, fields = zlib.crc32(data), bytearray()
    if offset:
        fields += bytes((_OFFSET,)) + _number(offset)
    if crc32:
        fields += bytes((_CRC32,)) + crc32.to_bytes(4, "little")
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
    start = crc32 = 0
    try:
        size, at = varint(message, 1)
        if message[0] != key or at + size != len(message):
            return None
        if message[at] == _OFFSET:
            start, at = varint(message, at + 1)
        if message[at] == _CRC32:
            crc32, at = int.from_bytes(message[at + 1 : at + 5], "little"), at + 5
        if message[at] != _DATA:
            return None
        size, at = varint(message, at + 1)
    except IndexError:
        return None
    if at + size != len(message):
        return None
    return checked_chunk(start, crc32, memoryview(message)[at:], offset)
