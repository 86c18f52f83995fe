"""The bound of a round: the least server that moves the same bytes over gRPC and adds them up.

grpc.aio, raw frames of 1 MiB without protobuf, over the same mutual TLS as the product or in plain text. The
frames of a model are made once for all devices, and uploads are added to a float64 sum block by block as they
come. It checks nothing, hashes nothing and has no disk; with `hashed` it adds what no safe exchange can do
without: SHA-256 of what comes, at both ends, and of each result.

    python -m benchmarks.least_server BYTES DEVICES [STATE]

serves a model of that many bytes to that many devices, with the certificates in the state folder of a server.
"""

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from grpc import aio

from fedserver.authority.roots import Authority
from fedserver.rpc.tls import device_credentials
from shoal.core.exchange.tensors import Manifest, layout

FRAME, BLOCK = 1 << 20, 1 << 16
MOST = 100
"""How many devices there are at most."""
LIMIT = 600.0
"""Seconds after which a server or a call ends in any case."""
HOST = "127.0.0.1"
OPTIONS = (
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.max_send_message_length", 4 << 20),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 20),
    ("grpc.so_reuseport", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)


class LeastServer(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Fetch streams the model's frames; Upload takes a model of float32, and answers when all have come."""

    def __init__(self, size: int, devices: int) -> None:
        self._devices, self._arrived = devices, 0
        self._sum, self._scratch = np.zeros(size // 4), np.empty(BLOCK)
        self._frames = self._cut(bytes(size))
        self._done = asyncio.Event()

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if details.method == "/bound/Fetch":
            return grpc.unary_stream_rpc_method_handler(self._fetch)
        return grpc.stream_unary_rpc_method_handler(self._upload)

    async def _fetch(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        for frame in self._frames:
            yield frame

    async def _upload(self, frames: AsyncIterator[bytes], context: Any) -> bytes:
        done, at, sha = self._done, 0, hashlib.sha256()
        expected = dict(context.invocation_metadata()).get("sha256", "")
        async for frame in frames:
            if expected:
                sha.update(frame)
            values = np.frombuffer(frame, np.float32)
            for start in range(0, len(values), BLOCK):
                block = values[start : start + BLOCK]
                scaled = np.multiply(block, 1.0 / self._devices, out=self._scratch[: len(block)], dtype=float)
                self._sum[at : at + len(block)] += scaled
                at += len(block)
        assert expected in ("", sha.hexdigest())
        self._arrived += 1
        if self._arrived == self._devices:
            self._frames = self._cut(self._sum.astype(np.float32).tobytes())
            self._sum[:] = 0.0
            self._arrived, self._done = 0, asyncio.Event()
            done.set()
        await done.wait()
        return b""

    @staticmethod
    def _cut(model: bytes) -> list[bytes]:
        return [model[start : start + FRAME] for start in range(0, len(model), FRAME)]


async def serve(size: int, devices: int, state: Path | None) -> None:
    server = aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((LeastServer(size, devices),))
    if state is None:
        port = server.add_insecure_port(f"{HOST}:0")
    else:
        port = server.add_secure_port(f"{HOST}:0", device_credentials(Authority.open(state, (HOST,))))
    await server.start()
    print(f"listening on {HOST}:{port}", flush=True)
    await server.wait_for_termination(LIMIT)


class LeastDevice:
    """One device of it. model: the memory for its model; hashed: with hashes of all that comes and goes.

    first: the first number of the model that the last round began with.
    """

    def __init__(
        self,
        address: str,
        number: int,
        manifest: Manifest,
        model: bytearray,
        hashed: bool,
        credentials: grpc.ChannelCredentials | None,
    ) -> None:
        self._number, self._manifest, self._model, self._hashed = number, manifest, model, hashed
        self._channel = (
            aio.insecure_channel(address, OPTIONS)
            if credentials is None
            else aio.secure_channel(address, credentials, OPTIONS)
        )
        self._fetch = self._channel.unary_stream("/bound/Fetch", None, None)
        self._upload = self._channel.stream_unary("/bound/Upload", None, None)
        self.first = 0.0

    async def round(self) -> None:
        model, at, sha = self._model, 0, hashlib.sha256()
        async for frame in self._fetch(b"", timeout=LIMIT):
            if self._hashed:
                sha.update(frame)
            model[at : at + len(frame)] = frame
            at += len(frame)
        (self.first,) = np.frombuffer(model, np.float32, 1)
        train(model, self._manifest, self._number)
        metadata = (("sha256", (await digest_of(model)) if self._hashed else ""),)
        await self._upload(pieces(model), metadata=metadata, timeout=LIMIT)

    async def close(self) -> None:
        await self._channel.close(None)


def train(model: bytearray, manifest: Manifest, number: int) -> None:
    """What a device makes of a model; the padding between tensors stays as it is. Updates are of about the
    same length, or the server would shorten the longest."""
    for spec, start in zip(manifest, layout(manifest)[0], strict=True):
        np.frombuffer(model, np.float32, spec.nbytes // 4, start)[:] += np.float32(1 + number / MOST)


async def digest_of(model: bytearray) -> str:
    """On a thread: a real device hashes its result in a process of its own."""
    return (await asyncio.to_thread(hashlib.sha256, model)).hexdigest()


async def pieces(data: bytearray) -> AsyncIterator[bytes]:
    for start in range(0, len(data), FRAME):
        yield bytes(memoryview(data)[start : start + FRAME])


if __name__ == "__main__":
    size, devices, *state = sys.argv[1:]
    asyncio.run(serve(int(size), int(devices), Path(state[0]) if state else None))
