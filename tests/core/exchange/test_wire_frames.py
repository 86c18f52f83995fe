"""Frames are the bytes of the contract's messages, written and read by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import BadPayload
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import blob_service_pb2, tensor_pb2
from shoal.core.exchange.payload import BlobRef

FETCH, UPLOAD = blob_service_pb2.FetchResponse, blob_service_pb2.UploadRequest
OFFSETS = st.sampled_from([0, 1, 127, 128, 300, 1 << 20, (1 << 40) + 5, (1 << 64) - 1])
DATA = st.binary(min_size=1, max_size=300) | st.sampled_from([b"x" * 20_000, bytes(1 << 20)])


@given(OFFSETS, DATA)
def test_a_frame_has_the_bytes_that_protobuf_writes(offset: int, data: bytes) -> None:
    chunk = wire.chunk_to_pb(offset, data)
    for frame, message, read in (
        (wire.fetch_frame(offset, data), FETCH(chunk=chunk), wire.fetched),
        (wire.upload_frame(offset, memoryview(data)), UPLOAD(chunk=chunk), wire.uploaded),
    ):
        assert frame == message.SerializeToString()
        found = read(frame, offset)
        assert isinstance(found, memoryview)  # without a copy
        assert found == data


@given(OFFSETS, DATA)
def test_the_bytes_of_any_other_library_are_read_too(offset: int, data: bytes) -> None:
    """Fields in another order, a field twice, and fields of a later version."""
    pb = wire.chunk_to_pb(offset, data)
    before, after = tensor_pb2.Chunk(data=data), tensor_pb2.Chunk(offset=pb.offset)
    for parts in ((before, after), (tensor_pb2.Chunk(data=b"?"), pb)):
        chunk = b"".join(part.SerializeToString() for part in parts)
        for key, read in ((b"\x0a", wire.fetched), (b"\x12", wire.uploaded)):
            message = key + _length(chunk) + chunk
            assert bytes(read(message, offset)) == data
            assert bytes(read(b"\x78\x01" + message, offset)) == data


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"offset": 6}, "starts at byte 6, expected 7"),
        ({"data": b""}, "a chunk has 0 bytes"),
        ({"data": bytes((1 << 20) + 1)}, "a chunk has 1048577 bytes"),
    ],
)
def test_a_wrong_chunk_is_refused(change: dict[str, object], reason: str) -> None:
    pb = wire.chunk_to_pb(7, b"some bytes")
    for name, value in change.items():
        setattr(pb, name, value)
    for message, read in ((FETCH(chunk=pb), wire.fetched), (UPLOAD(chunk=pb), wire.uploaded)):
        with pytest.raises(BadPayload, match=reason):
            read(message.SerializeToString(), 7)


@given(st.integers(0, 60), st.binary(max_size=4), st.booleans())
def test_what_is_cut_is_refused_and_what_is_changed_is_read_as_it_came(
    at: int, bytes_: bytes, cut: bool
) -> None:
    """Whether the bytes are right is for the blob's SHA-256 to say."""
    whole = wire.upload_frame(300, b"some bytes")
    message = whole[:at] if cut else whole[:at] + bytes_ + whole[at + len(bytes_) :]
    try:
        found = bytes(wire.uploaded(message, 300))
    except BadPayload:
        assert message != whole
    else:
        assert not cut or message == whole
        assert found in message
        assert found == b"some bytes" or message != whole


def test_an_upload_begins_with_its_start() -> None:
    blob = BlobRef("ab" * 32, 10)
    start = UPLOAD(start=blob_service_pb2.UploadStart(blob=wire.blob_to_pb(blob), start=4))
    assert wire.upload_start(start.SerializeToString()) == (blob, 4)
    with pytest.raises(BadPayload, match="must be its start"):
        wire.upload_start(wire.upload_frame(0, b"x"))
    with pytest.raises(BadPayload, match="only of chunks"):
        wire.uploaded(start.SerializeToString(), 0)


def test_frames_are_as_large_as_the_last_transfer_was_fast_and_begin_where_those_of_all_others_do() -> None:
    line, mega = wire.Line(), 1 << 20

    def sizes(start: int) -> list[int]:
        """How long frames are, from a byte of a blob on."""
        found, at = [], start
        while at < 16:
            found.append(line.next(at, 2))
            at += found[-1]
        return found

    assert sizes(6) == [2] * 5  # nothing is known yet
    for size, seconds, is_fast in (
        (7 * mega, 0.1, False),  # so much may only have filled buffers
        (9 * mega, 1.0, True),
        (mega, 0.1, True),  # which shows nothing else
        (mega, 60.0, False),  # it was cut, say
        (9 * mega, 3.0, False),
    ):
        line.moved(size, seconds)
        assert sizes(6) == ([2, 8] if is_fast else [2] * 5), (size, seconds)


def _length(data: bytes) -> bytes:
    """As the length of a field: see https://protobuf.dev/programming-guides/encoding."""
    found, size = bytearray(), len(data)
    while size > 127:
        found.append(size & 127 | 128)
        size >>= 7
    return bytes((*found, size))
