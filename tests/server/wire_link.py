"""A device that speaks the contract by hand, so that these tests need no `fedclient`.

As if models were large, it fetches and uploads them all.
"""

from collections.abc import AsyncIterator
from dataclasses import replace

from grpc import aio

from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import blob_service_pb2 as blob_pb
from shoal.core.exchange._pb.fed.v1 import device_service_pb2 as device_pb
from shoal.core.exchange._pb.fed.v1 import placement_service_pb2 as placement_pb
from shoal.core.exchange._pb.fed.v1.blob_service_pb2_grpc import BlobServiceStub
from shoal.core.exchange._pb.fed.v1.device_service_pb2_grpc import DeviceServiceStub
from shoal.core.exchange._pb.fed.v1.placement_service_pb2_grpc import PlacementServiceStub
from shoal.core.exchange.choosing import Wish
from shoal.core.exchange.link import Hello, Idle, Placement, Question, Receipt, Report, Task, Welcome
from shoal.core.exchange.parts import Evidence
from shoal.core.exchange.payload import BlobRef
from shoal.core.exchange.seal import Signed
from shoal.core.types import RunId


class WireLink:
    """A `shoal.core.exchange.link.Link`. It raises what gRPC raises."""

    def __init__(self, channel: aio.Channel, device: str) -> None:
        self._device, self._blobs = DeviceServiceStub(channel), BlobServiceStub(channel)
        self._placement = PlacementServiceStub(channel)
        self.metadata: tuple[tuple[str, str], ...] = (("shoal-device", device),)
        self._session = ""

    async def hello(self, hello: Hello) -> Welcome:
        answer = await self._device.Hello(wire.hello_to_pb(hello), metadata=self.metadata)
        self._session = answer.session
        self.metadata = (self.metadata[0], ("shoal-session", self._session))
        return wire.welcome_from_pb(answer)

    async def next_task(self, wait: float) -> Task | Idle:
        request = device_pb.NextTaskRequest(session=self._session, wait=wire.seconds_to_pb(wait))
        found = wire.next_from_pb(await self._device.NextTask(request, metadata=self.metadata))
        return found if isinstance(found, Idle) else replace(found, inline=(), inline_report=0)

    async def alive(self, run: RunId, round: int, attempt: int) -> bool:
        lease = wire.lease_to_pb(wire.Lease(run, round, attempt))
        request = device_pb.AliveRequest(session=self._session, lease=lease)
        return (await self._device.Alive(request, metadata=self.metadata)).wanted

    async def report(self, report: Report) -> Receipt:
        request = device_pb.ReportRequest(session=self._session, report=wire.report_to_pb(report))
        return wire.receipt_from_pb((await self._device.Report(request, metadata=self.metadata)).receipt)

    async def leave(self) -> None:
        await self._device.Leave(device_pb.LeaveRequest(session=self._session), metadata=self.metadata)

    async def place(
        self, run: RunId, evidence: Evidence | Wish | None, accept_nearest: bool = False
    ) -> Question | Placement:
        request = wire.place_to_pb(run, evidence)
        request.accept_nearest = accept_nearest
        return wire.answer_from_pb(await self._placement.Place(request, metadata=self.metadata))

    async def seal(self, release: str) -> Signed | None:
        request = placement_pb.GetSealRequest(release=release)
        return wire.seal_from_pb(await self._placement.GetSeal(request, metadata=self.metadata))

    async def fetch(self, blob: BlobRef, start: int) -> AsyncIterator[bytes]:
        request = blob_pb.FetchRequest(blob=wire.blob_to_pb(blob), start=start)
        async for response in self._blobs.Fetch(request, metadata=self.metadata):
            yield wire.chunk_from_pb(response.chunk, start)
            start += len(response.chunk.data)

    async def uploaded(self, blob: BlobRef) -> int:
        request = blob_pb.UploadedRequest(blob=wire.blob_to_pb(blob))
        return (await self._blobs.Uploaded(request, metadata=self.metadata)).held

    async def upload(self, blob: BlobRef, start: int, chunks: AsyncIterator[bytes]) -> int:
        async def requests() -> AsyncIterator[blob_pb.UploadRequest]:
            at = start
            yield blob_pb.UploadRequest(start=blob_pb.UploadStart(blob=wire.blob_to_pb(blob), start=at))
            async for chunk in chunks:
                yield blob_pb.UploadRequest(chunk=wire.chunk_to_pb(at, chunk))
                at += len(chunk)

        return (await self._blobs.Upload(requests(), metadata=self.metadata)).held
