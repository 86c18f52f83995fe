"""What a hostile device sends: each attack is one lie, made of a task that it really has.

An attack returns what the server said, or raises what gRPC raised.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import grpc
import numpy as np
from grpc import aio

from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import blob_service_pb2 as blob_pb
from shoal.core.exchange._pb.fed.v1 import device_service_pb2 as device_pb
from shoal.core.exchange._pb.fed.v1 import messages_pb2, parts_pb2, payload_pb2, task_pb2, tensor_pb2
from shoal.core.exchange.link import Hello, Receipt, Report, Task
from shoal.core.exchange.messages import Evaluated, Message, Trained
from shoal.core.exchange.parts import Descriptor, Moments
from shoal.core.exchange.payload import BlobRef, Payload
from shoal.core.types import Tensors
from tests.server.toys import Hands

BIG = 4_190_000
"""Bytes: just below what gRPC lets through."""
EMPTY_FIELD = b"\x0a\x00"
"""Field 1, nothing in it: the cheapest object that a message can be asked to hold."""


@dataclass
class Attack:
    """A device with a task. model: what it would report if it were honest."""

    channel: aio.Channel
    hands: Hands
    task: Task
    model: Tensors

    async def report(self, reply: Message) -> Receipt:
        """Upload and report an answer."""
        return await self.hands.send(self.task, self.hands.payload(reply))

    async def tensors(self, **changes: Any) -> Receipt:
        """Report the model with some tensors changed; None leaves one out."""
        changed = {name.replace("_", "."): value for name, value in changes.items()}
        model = {name: array for name, array in {**self.model, **changed}.items() if array is not None}
        return await self.report(Trained(model, 10, 0.5))

    async def manifest(self, *specs: tensor_pb2.TensorSpec, size: int = 4) -> Receipt:
        """Report a set of tensors that is only announced."""
        blob = tensor_pb2.BlobRef(sha256=bytes(32), size=size)
        weights = parts_pb2.Weights(manifest=specs, blob=blob)
        return await self.payload(payload_pb2.Payload(trained=messages_pb2.Trained(model=weights)))

    async def more(self, field: bytes) -> Receipt:
        """Report the model with a field that the contract does not have."""
        payload = wire.payload_to_pb(self.hands.payload(Trained(self.model, 10, 0.5)))
        payload.trained.MergeFromString(field)
        return await self.payload(payload)

    async def payload(self, payload: payload_pb2.Payload) -> Receipt:
        lease = task_pb2.Lease(run=self.task.run, round=self.task.round, attempt=self.task.attempt)
        report = task_pb2.Report(lease=lease, payload=payload)
        request = device_pb.ReportRequest(session=self.session, report=report)
        answer = await self.raw("DeviceService/Report", request.SerializeToString())
        return wire.receipt_from_pb(device_pb.ReportResponse.FromString(answer).receipt)

    async def raw(self, method: str, data: bytes, **more: Any) -> bytes:
        """Bytes as they are, to one of the calls."""
        metadata = (*self.hands.link.metadata, *more.pop("metadata", ()))  # type: ignore[attr-defined]
        call: Any = self.channel.unary_unary(f"/fed.v1.{method}")
        return await call(data, metadata=metadata, **more)

    async def chunks(self, blob: BlobRef, *chunks: tensor_pb2.Chunk, start: int = 0) -> object:
        """An upload by hand."""

        async def requests() -> AsyncIterator[bytes]:
            begin = blob_pb.UploadStart(blob=wire.blob_to_pb(blob), start=start)
            yield blob_pb.UploadRequest(start=begin).SerializeToString()
            for chunk in chunks:
                yield blob_pb.UploadRequest(chunk=chunk).SerializeToString()

        call: Any = self.channel.stream_unary("/fed.v1.BlobService/Upload")
        return await call(requests(), metadata=self.hands.link.metadata)  # type: ignore[attr-defined]

    @property
    def session(self) -> str:
        return str(self.hands.link._session)  # type: ignore[attr-defined]

    @property
    def blob(self) -> BlobRef:
        """Of the honest model, which is never uploaded by these."""
        (weights,) = self.hands.payload(Trained(self.model, 10, 0.5)).weights()
        return weights.blob

    @property
    def data(self) -> bytes:
        return self.hands.blobs[self.blob.sha256]


Hostile = Callable[[Attack], Awaitable[object]]


def one(array: Any, value: float, at: int = 0) -> Any:
    """The same array with one value changed."""
    changed = array.copy()
    changed.flat[at] = value
    return changed


def spec(**changes: Any) -> tensor_pb2.TensorSpec:
    fields: dict[str, Any] = {"name": "w", "dtype": tensor_pb2.DTYPE_FLOAT32, "shape": [1]}
    return tensor_pb2.TensorSpec(**fields | changes)


def damaged(data: bytes) -> tensor_pb2.Chunk:
    return wire.chunk_to_pb(0, data[:-1] + bytes((data[-1] ^ 1,)))


def nested(depth: int) -> bytes:
    """Groups in groups, which no schema has."""
    return b"\x0b" * depth + b"\x0c" * depth


def field(number: int, data: bytes) -> bytes:
    """A field of a message, with a message in it."""
    size, length = bytearray(), len(data)
    while length > 127:
        size.append(length & 127 | 128)
        length >>= 7
    key = number << 3 | 2
    return bytes([key] if key < 128 else [key & 127 | 128, key >> 7]) + bytes([*size, length]) + data


def reporting(payload: bytes) -> bytes:
    """The bytes of a ReportRequest around those of a payload."""
    return field(2, field(2, payload))


async def another_blob(attack: Attack) -> Receipt:
    """The upload has the hash that it says, and the report names another."""
    payload = attack.hands.payload(Trained(attack.model, 10, 0.5))
    await attack.hands.upload(payload)
    (weights,) = payload.weights()
    lie = replace(weights, blob=BlobRef("ab" * 32, weights.blob.size))
    task = attack.task
    report = Report(task.run, task.round, task.attempt, Payload("trained", {**payload.parts, "model": lie}))
    return await attack.hands.link.report(report)


async def other_lease(attack: Attack, **changes: int) -> Receipt:
    return await attack.hands.send(
        replace(attack.task, **changes), attack.hands.payload(Trained(attack.model, 10, 0.5))
    )


WEIGHT, BIAS = "layer.weight", "layer.bias"
NARROW = np.zeros((3, 4), np.float16)
DESCRIPTOR = Descriptor(Moments(np.ones((1, 2)), np.ones((1, 2)), np.ones(1)), "0" * 64)
LOOKALIKE = "layer.we\N{CYRILLIC SMALL LETTER BYELORUSSIAN-UKRAINIAN I}ght"

ATTACKS: dict[str, Hostile] = {
    # values
    "a NaN among the weights": lambda a: a.tensors(layer_weight=one(a.model[WEIGHT], np.nan, 7)),
    "an infinite weight": lambda a: a.tensors(layer_weight=one(a.model[WEIGHT], np.inf)),
    "a negative infinite bias": lambda a: a.tensors(layer_bias=one(a.model[BIAS], -np.inf, 2)),
    "a loss that is NaN": lambda a: a.report(Trained(a.model, 10, float("nan"))),
    "an infinite loss": lambda a: a.report(Trained(a.model, 10, float("-inf"))),
    "no samples": lambda a: a.report(Trained(a.model, 0, 0.5)),
    "fewer samples than none": lambda a: a.report(Trained(a.model, -5, 0.5)),
    "four quintillion samples": lambda a: a.report(Trained(a.model, 1 << 62, 0.5)),
    # shapes, types, names
    "another shape": lambda a: a.tensors(layer_weight=np.zeros((3, 5), np.float32)),
    "a transposed shape": lambda a: a.tensors(layer_weight=np.ascontiguousarray(a.model[WEIGHT].T)),
    "a wider type": lambda a: a.tensors(layer_weight=a.model[WEIGHT].astype(np.float64)),
    "a narrower type": lambda a: a.tensors(layer_weight=NARROW),
    "whole numbers for real ones": lambda a: a.tensors(layer_weight=np.zeros((3, 4), np.int32)),
    "a tensor too few": lambda a: a.tensors(layer_bias=None),
    "a tensor too many": lambda a: a.tensors(extra=np.zeros(1, np.float32)),
    "a name that looks alike": lambda a: a.report(
        Trained({LOOKALIKE if name == WEIGHT else name: a.model[name] for name in a.model}, 10, 0.5)
    ),
    "a name with a byte 0": lambda a: a.report(
        Trained({name + "\0" if name == WEIGHT else name: a.model[name] for name in a.model}, 10, 0.5)
    ),
    "no name": lambda a: a.manifest(spec(name="")),
    "the same name twice": lambda a: a.manifest(spec(), spec(), size=128),
    # what is asked for
    "an answer to another question": lambda a: a.report(Evaluated(0.5, 0.5, 10)),
    "a descriptor that was not asked for": lambda a: a.report(Trained(a.model, 10, 0.5, DESCRIPTOR)),
    "a field of its own": lambda a: a.more(field(1023, b"x")),
    "a text for a number": lambda a: a.more(field(2, b"ten")),
    "a message of the contract as a custom one": lambda a: a.payload(
        payload_pb2.Payload(custom=payload_pb2.Custom(kind="trained"))
    ),
    "a message of a stranger": lambda a: a.payload(
        payload_pb2.Payload(custom=payload_pb2.Custom(kind="evil"))
    ),
    "a round that is not open": lambda a: other_lease(a, round=a.task.round + 1),
    "an attempt that is not its own": lambda a: other_lease(a, attempt=a.task.attempt + 7),
    "a protocol of tomorrow": lambda a: a.hands.link.hello(Hello("evil", 1 << 20, 1 << 21)),
    "a blob that never came": another_blob,
    "a software of two lines": lambda a: a.hands.link.hello(Hello("evil\nd9  working  0 s ago")),
    "a software that is too long": lambda a: a.hands.link.hello(Hello("x" * 65)),
    # sizes
    "4,097 tensors": lambda a: a.manifest(*[spec(name=str(at)) for at in range(4097)]),
    "a shape of 2^312 numbers": lambda a: a.manifest(spec(shape=[1 << 39] * 8)),
    "a shape with a 2^63 in it": lambda a: a.manifest(spec(shape=[1 << 63])),
    "a blob of a terabyte": lambda a: a.chunks(BlobRef("ab" * 32, 1 << 40), wire.chunk_to_pb(0, b"x")),
    "more than was announced": lambda a: a.chunks(
        a.blob, wire.chunk_to_pb(0, a.data), wire.chunk_to_pb(len(a.data), b"x" * 1000)
    ),
    "other bytes than announced": lambda a: a.chunks(a.blob, wire.chunk_to_pb(0, b"x" * len(a.data))),
    "a start beyond the end": lambda a: a.chunks(a.blob, start=(1 << 64) - 1),
    "a gap between chunks": lambda a: a.chunks(
        a.blob, wire.chunk_to_pb(0, a.data[:8]), wire.chunk_to_pb(16, a.data[16:])
    ),
    "the same chunk twice": lambda a: a.chunks(a.blob, *[wire.chunk_to_pb(0, a.data[:8])] * 2),
    "a damaged chunk": lambda a: a.chunks(a.blob, damaged(a.data)),
    "an empty chunk": lambda a: a.chunks(a.blob, wire.chunk_to_pb(0, b"")),
    "a chunk above 1 MiB": lambda a: a.chunks(a.blob, wire.chunk_to_pb(0, bytes((1 << 20) + 1))),
    # bombs
    "a message of 64 MB": lambda a: a.raw("DeviceService/Report", bytes(64 << 20)),
    "64 MB in a gzip of 64 kB": lambda a: a.raw(
        "DeviceService/Report", bytes(64 << 20), compression=grpc.Compression.Gzip
    ),
    "two million empty tensors": lambda a: a.raw(
        "DeviceService/Report",
        reporting(field(3, field(1, EMPTY_FIELD * (BIG // 2)))),
    ),
    "400,000 empty parts": lambda a: a.raw(
        "DeviceService/Report",
        reporting(field(1, b"".join(field(2, field(1, b"%06x" % at)) for at in range(BIG // 10)))),
    ),
    "a shape of four million ones": lambda a: a.raw(
        "DeviceService/Report",
        reporting(field(3, field(1, field(1, field(3, b"\1" * BIG))))),
    ),
    "a mark two million times": lambda a: a.raw("DeviceService/Hello", b"\x22\x00" * (BIG // 2)),
    "two million unknown fields": lambda a: a.raw("DeviceService/Hello", b"\x78\x01" * (BIG // 2)),
    "nested 100,000 deep": lambda a: a.raw("DeviceService/Hello", nested(100_000)),
    "nested 200 deep": lambda a: a.raw("DeviceService/Hello", nested(200)),
    "bytes that are no message": lambda a: a.raw("DeviceService/Report", b"\xff" * 1000),
    "a text that is not UTF-8": lambda a: a.raw("DeviceService/Hello", field(1, b"\xc3\x28")),
    "metadata of 64 kB": lambda a: a.raw("DeviceService/Leave", b"", metadata=(("x-long", "y" * 65536),)),
}
