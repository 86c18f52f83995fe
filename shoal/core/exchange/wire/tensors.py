"""Plain values, blobs and tensors by reference."""

from collections.abc import Mapping, MutableMapping
from functools import lru_cache
from typing import TypeVar

from shoal.core.errors import BadPayload
from shoal.core.exchange._pb.fed.v1 import parts_pb2, tensor_pb2
from shoal.core.exchange.payload import BlobRef, Weights
from shoal.core.exchange.tensors import DTYPES, MAX_RANK, MAX_TENSORS, Manifest, TensorSpec
from shoal.core.exchange.wire.checks import MAX_ENTRIES, limited, meaning, name, present, text, unicode, whole
from shoal.core.types import Scalar

MAX_CHUNK, CHUNK = 1 << 20, 1 << 18
"""Bytes in one chunk: the most that is taken, and what we send on a slow line: see `frames.Line`."""

MANIFESTS, SHORT = 16, 512
"""Manifests that are remembered, since all devices of a run send the same one, and the tensors that one of
them has at most: a peer cannot fill the memory with others."""

Data = TypeVar("Data", bytes, memoryview)

_DTYPE_NUMBERS = {dtype: tensor_pb2.Dtype.Value(f"DTYPE_{dtype.upper()}") for dtype in DTYPES}
_DTYPES: Mapping[int, str] = {number: dtype for dtype, number in _DTYPE_NUMBERS.items()}


def scalar_to_pb(value: Scalar) -> parts_pb2.Scalar:
    """Raises BadPayload for a whole number beyond 64 bits and for a text that is too long or not Unicode."""
    match value:
        case bool():
            return parts_pb2.Scalar(boolean=value)
        case int():
            return parts_pb2.Scalar(integer=whole(value))
        case float():
            return parts_pb2.Scalar(number=value)
        case str():
            return parts_pb2.Scalar(text=unicode(value))
    raise TypeError(f"a {type(value).__name__} is not a plain value")


def scalar_from_pb(pb: parts_pb2.Scalar) -> Scalar:
    """A number may be NaN or infinite: the code that uses it has to check."""
    match pb.WhichOneof("value"):
        case "boolean":
            return pb.boolean
        case "integer":
            return pb.integer
        case "number":
            return pb.number
        case "text":
            return text(pb.text, "a text")
    raise BadPayload("a plain value is not set")


def scalars_to_pb(values: Mapping[str, Scalar], what: str) -> dict[str, parts_pb2.Scalar]:
    """A flat record of settings, for a map field."""
    limited(len(values), MAX_ENTRIES, what)
    return {name(key, f"{what}, a name"): scalar_to_pb(value) for key, value in values.items()}


def scalars_from_pb(pb: MutableMapping[str, parts_pb2.Scalar], what: str) -> dict[str, Scalar]:
    limited(len(pb), MAX_ENTRIES, what)
    return {name(key, f"{what}, a name"): scalar_from_pb(value) for key, value in pb.items()}


def digest_from_pb(data: bytes, what: str) -> str:
    """The 64 hex digits of a SHA-256."""
    if len(data) != 32:
        raise BadPayload(f"{what}: a SHA-256 has 32 bytes")
    return data.hex()


def blob_to_pb(blob: BlobRef) -> tensor_pb2.BlobRef:
    return tensor_pb2.BlobRef(sha256=bytes.fromhex(blob.sha256), size=blob.size)


def blob_from_pb(pb: tensor_pb2.BlobRef) -> BlobRef:
    return BlobRef(digest_from_pb(pb.sha256, "a blob"), pb.size)


def chunk_to_pb(offset: int, data: bytes) -> tensor_pb2.Chunk:
    return tensor_pb2.Chunk(offset=offset, data=data)


def chunk_from_pb(pb: tensor_pb2.Chunk, offset: int) -> bytes:
    """The bytes of the chunk expected at `offset`; another offset or size is BadPayload."""
    return checked_chunk(pb.offset, pb.data, offset)


def checked_chunk(start: int, data: Data, offset: int) -> Data:
    """The data of a chunk, if it is the one expected at `offset`. Raises BadPayload."""
    if start != offset:
        raise BadPayload(f"a chunk starts at byte {start}, expected {offset}")
    if not 0 < len(data) <= MAX_CHUNK:
        raise BadPayload(f"a chunk has {len(data)} bytes", f"1 to {MAX_CHUNK} are taken")
    return data


def weights_to_pb(weights: Weights) -> parts_pb2.Weights:
    known = _known_bytes if len(weights.manifest) <= SHORT else _manifest_to_bytes
    pb = parts_pb2.Weights.FromString(known(weights.manifest))
    pb.blob.sha256, pb.blob.size = bytes.fromhex(weights.blob.sha256), weights.blob.size
    return pb


def weights_from_pb(pb: parts_pb2.Weights) -> Weights:
    """Raises BadPayload also where the blob does not have the size that the manifest asks for."""
    present(pb, "blob", "a set of tensors")
    limited(len(pb.manifest), MAX_TENSORS, "a set of tensors")
    known = _known_manifest if len(pb.manifest) <= SHORT else _manifest_from_bytes
    manifest = known(parts_pb2.Weights(manifest=pb.manifest).SerializeToString())
    return Weights(manifest, blob_from_pb(pb.blob))


def _manifest_to_bytes(manifest: Manifest) -> bytes:
    """A message that has only this manifest."""
    specs = [
        tensor_pb2.TensorSpec(name=spec.name, dtype=_DTYPE_NUMBERS[spec.dtype], shape=spec.shape)
        for spec in manifest
    ]
    return parts_pb2.Weights(manifest=specs).SerializeToString()


def _manifest_from_bytes(data: bytes) -> Manifest:
    return tuple(map(_spec_from_pb, parts_pb2.Weights.FromString(data).manifest))


_known_bytes = lru_cache(MANIFESTS)(_manifest_to_bytes)
_known_manifest = lru_cache(MANIFESTS)(_manifest_from_bytes)


def _spec_from_pb(pb: tensor_pb2.TensorSpec) -> TensorSpec:
    limited(len(pb.shape), MAX_RANK, "the dimensions of a tensor")
    return TensorSpec(pb.name, meaning(_DTYPES, pb.dtype, "a tensor's dtype"), tuple(pb.shape))
