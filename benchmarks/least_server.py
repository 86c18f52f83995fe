"""The bound of a round: the least server that moves the same bytes over gRPC and adds them up.

grpc.aio, raw frames of 1 MiB without protobuf, over the same mutual TLS as the product. The frames of a model
are made once for all devices, and uploads are added to a float32 sum block by block as they come. It checks
nothing, hashes nothing and has no disk.

    python -m benchmarks.least_server serve BYTES DEVICES STATE
    python -m benchmarks.least_server device ADDRESS BYTES ROUNDS FOLDER

The first serves a model of that many bytes to that many devices, with the certificates in the state folder of
a server, and says when a round begins and ends; the second is one of its devices, with the certificate in the
folder of a device that has joined that server.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from grpc import aio

from fedclient.identity.keyring import Keyring
from fedclient.identity.rpc import credentials
from fedclient.store.state import DeviceFolder
from fedserver.authority.authority import Authority
from fedserver.rpc.tls import credentials as device_credentials
from shoal.core.identity.joining import TLS_NAME

FRAME, BLOCK = 1 << 20, 1 << 16
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
    ("grpc.ssl_target_name_override", TLS_NAME),  # the name in the server's certificate
)


class LeastServer(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Fetch streams the model's frames, the first time once all devices are here; Upload takes a model of
    float32, and answers when all have come."""

    def __init__(self, size: int, devices: int) -> None:
        self._devices, self._here, self._arrived = devices, 0, 0
        self._sum, self._scratch = np.zeros(size // 4, np.float32), np.empty(BLOCK, np.float32)
        self._frames = self._cut(bytes(size))
        self._all_here, self._done = asyncio.Event(), asyncio.Event()

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if details.method == "/bound/Fetch":
            return grpc.unary_stream_rpc_method_handler(self._fetch)
        return grpc.stream_unary_rpc_method_handler(self._upload)

    async def _fetch(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        if not self._all_here.is_set():
            self._here += 1
            if self._here == self._devices:
                print("round", flush=True)
                self._all_here.set()
            await self._all_here.wait()
        for frame in self._frames:
            yield frame

    async def _upload(self, frames: AsyncIterator[bytes], context: Any) -> bytes:
        done, at = self._done, 0
        async for frame in frames:
            values = np.frombuffer(frame, np.float32)
            for start in range(0, len(values), BLOCK):
                block = values[start : start + BLOCK]
                scaled = np.multiply(block, np.float32(1.0 / self._devices), out=self._scratch[: len(block)])
                self._sum[at : at + len(block)] += scaled
                at += len(block)
        self._arrived += 1
        if self._arrived == self._devices:
            self._frames = self._cut(self._sum.tobytes())
            self._sum[:] = 0.0
            self._arrived, self._done = 0, asyncio.Event()
            print("round", flush=True)
            done.set()
        await done.wait()
        return b""

    @staticmethod
    def _cut(model: bytes) -> list[bytes]:
        return [model[start : start + FRAME] for start in range(0, len(model), FRAME)]


async def serve(size: int, devices: int, state: Path) -> None:
    server = aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((LeastServer(size, devices),))
    port = server.add_secure_port(f"{HOST}:0", device_credentials(Authority.open(state), asks=True))
    await server.start()
    print(f"listening on {HOST}:{port}", flush=True)
    await server.wait_for_termination(LIMIT)


async def be_device(address: str, size: int, rounds: int, folder: Path) -> None:
    """Fetch the model, add a number to it and send it back, this many times. folder: of a device that has
    joined the server whose certificates the bound uses."""
    identity = Keyring(DeviceFolder(folder).identity).identity()
    assert identity is not None
    model = bytearray(size)
    async with aio.secure_channel(address, credentials(identity), OPTIONS) as channel:
        fetch = channel.unary_stream("/bound/Fetch", None, None)
        upload = channel.stream_unary("/bound/Upload", None, None)
        for _ in range(rounds):
            at = 0
            async for frame in fetch(b"", timeout=LIMIT):
                model[at : at + len(frame)] = frame
                at += len(frame)
            np.frombuffer(model, np.float32)[:] += np.float32(1e-3)
            await upload(pieces(model), timeout=LIMIT)


async def pieces(data: bytearray) -> AsyncIterator[bytes]:
    for start in range(0, len(data), FRAME):
        yield bytes(memoryview(data)[start : start + FRAME])


if __name__ == "__main__":
    role, *rest = sys.argv[1:]
    if role == "serve":
        asyncio.run(serve(int(rest[0]), int(rest[1]), Path(rest[2])))
    else:
        asyncio.run(be_device(rest[0], int(rest[1]), int(rest[2]), Path(rest[3])))
