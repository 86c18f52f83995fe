"""A MemoryServer behind real gRPC on a free port of this machine."""
# ruff: noqa: N802 - gRPC names the methods

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from grpc import aio

from fedclient.net.rpc import RpcLink
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import blob_service_pb2 as blobs
from shoal.core.exchange._pb.fed.v1 import device_service_pb2 as device
from shoal.core.exchange._pb.fed.v1.blob_service_pb2_grpc import (
    BlobServiceServicer,
    add_BlobServiceServicer_to_server,
)
from shoal.core.exchange._pb.fed.v1.device_service_pb2_grpc import (
    DeviceServiceServicer,
    add_DeviceServiceServicer_to_server,
)
from shoal.core.exchange._pb.fed.v1.placement_service_pb2_grpc import (
    PlacementServiceServicer,
    add_PlacementServiceServicer_to_server,
)
from shoal.core.identity.certificates import certificate
from tests.client.memory_server import MemoryLink, MemoryServer


class Bridge(DeviceServiceServicer, BlobServiceServicer, PlacementServiceServicer):
    """Serves a MemoryServer. callers: the metadata that came with each call; raising: what calls end with.

    serials: of the certificates that came with each call, over TLS.
    next_task: an answer in place of the server's.
    """

    def __init__(self, server: MemoryServer) -> None:
        self.link = MemoryLink(server)
        self.callers: list[dict[str, str]] = []
        self.serials: list[int] = []
        self.raising: Callable[[Any], Awaitable[None]] | None = None
        self.next_task: Any = None

    async def _enter(self, context: Any, request: Any = None) -> None:
        metadata = {key: value for key, value in context.invocation_metadata() if key.startswith("shoal-")}
        self.callers.append(metadata)
        for pem in context.auth_context().get("x509_pem_cert", []):
            self.serials.append(certificate(pem).serial_number)
        if request is not None:
            assert request.session == metadata.get("shoal-session", "")
        if self.raising is not None:
            await self.raising(context)

    async def Hello(self, request: Any, context: Any) -> Any:
        await self._enter(context)
        return wire.welcome_to_pb(await self.link.hello(wire.hello_from_pb(request)))

    async def NextTask(self, request: Any, context: Any) -> Any:
        await self._enter(context, request)
        if self.next_task is not None:
            return self.next_task
        wait = wire.seconds_from_pb(request.wait, "wait")
        return wire.next_to_pb(await self.link.next_task(wait))

    async def Alive(self, request: Any, context: Any) -> Any:
        await self._enter(context, request)
        return device.AliveResponse(wanted=await self.link.alive(*wire.lease_from_pb(request.lease)))

    async def Report(self, request: Any, context: Any) -> Any:
        await self._enter(context, request)
        receipt = await self.link.report(wire.report_from_pb(request.report))
        return device.ReportResponse(receipt=wire.receipt_to_pb(receipt))

    async def Leave(self, request: Any, context: Any) -> Any:
        await self._enter(context, request)
        await self.link.leave()
        return device.LeaveResponse()

    async def Fetch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        await self._enter(context)
        offset = request.start
        async for data in self.link.fetch(wire.blob_from_pb(request.blob), offset):
            yield blobs.FetchResponse(chunk=wire.chunk_to_pb(offset, data))
            offset += len(data)

    async def Uploaded(self, request: Any, context: Any) -> Any:
        await self._enter(context)
        return blobs.UploadedResponse(held=await self.link.uploaded(wire.blob_from_pb(request.blob)))

    async def Upload(self, requests: Any, context: Any) -> Any:
        await self._enter(context)
        first = await anext(aiter(requests))
        blob, start = wire.blob_from_pb(first.start.blob), first.start.start

        async def chunks() -> AsyncIterator[bytes]:
            offset = start
            async for request in requests:
                yield wire.chunk_from_pb(request.chunk, offset)
                offset += len(request.chunk.data)

        return blobs.UploadResponse(held=await self.link.upload(blob, start, chunks()))

    async def Place(self, request: Any, context: Any) -> Any:
        await self._enter(context)
        return wire.answer_to_pb(await self.link.place(*wire.place_from_pb(request), request.accept_nearest))

    async def GetSeal(self, request: Any, context: Any) -> Any:
        await self._enter(context)
        return wire.seal_to_pb(await self.link.seal(request.release))


def add_to(server: aio.Server, bridge: Bridge) -> None:
    add_DeviceServiceServicer_to_server(bridge, server)  # type: ignore[no-untyped-call]
    add_BlobServiceServicer_to_server(bridge, server)  # type: ignore[no-untyped-call]
    add_PlacementServiceServicer_to_server(bridge, server)  # type: ignore[no-untyped-call]


@asynccontextmanager
async def serving(server: MemoryServer) -> AsyncIterator[tuple[RpcLink, Bridge]]:
    bridge, grpc_server = Bridge(server), aio.server()
    add_to(grpc_server, bridge)
    port = grpc_server.add_insecure_port("127.0.0.1:0")
    await grpc_server.start()
    link = RpcLink(f"127.0.0.1:{port}", "pi-17")
    try:
        yield link, bridge
    finally:
        await link.close()
        await grpc_server.stop(None)
