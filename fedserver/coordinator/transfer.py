"""Blobs to devices and from them: who may have which, and how much is taken."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.runs import Lease
from fedserver.coordinator.visitor import Visitor
from fedserver.store.blobs import Upload
from shoal.core.errors import BadPayload, DiskFull, NotFound, Refused, ServerFull, TooOften
from shoal.core.exchange.admit import largest_upload, most_models
from shoal.core.exchange.payload import BlobRef
from shoal.core.exchange.wire import CHUNK
from shoal.core.types import RunId

AGAIN, REST = 16, (60.0, 120.0)
"""How many times over a device may send what a round needs of it: lines break, and the last bytes come again.
Between how many seconds it may try again after that; its next round is a new start."""


async def fetch(
    coordinator: Coordinator, visitor: Visitor, blob: BlobRef, start: int
) -> AsyncIterator[bytes]:
    """A blob from `start` on, to a device whose task or placement names it; NotFound for all others."""
    run = _run_of(coordinator, visitor, blob)
    if run is None:
        raise NotFound(
            f"blob {blob.sha256[:12]} is not for device {visitor.device}",
            "ask for the next task, or be placed",
        )
    async for chunk in read(coordinator.storage.blobs.path(blob.sha256), blob, start):
        coordinator.heard(visitor)
        coordinator.meter.down(run, visitor.device, len(chunk))
        yield chunk


def _run_of(coordinator: Coordinator, visitor: Visitor, blob: BlobRef) -> RunId | None:
    """The run that told the device of this blob."""
    for lease in coordinator.leases(visitor):
        if any(weights.blob == blob for weights in lease.task.payload.weights()):
            return lease.task.run
    return visitor.granted.get(blob.sha256)


async def read(path: Path, blob: BlobRef, start: int) -> AsyncIterator[bytes]:
    """The bytes of a file from `start` on, without holding up anything else."""
    if start > blob.size:
        raise BadPayload(f"a blob of {blob.size} bytes has no byte {start}")
    try:
        file = await asyncio.to_thread(path.open, "rb")
    except FileNotFoundError:
        raise NotFound(f"blob {blob.sha256[:12]} is gone", "ask for the next task") from None
    with file:
        file.seek(start)
        while chunk := await asyncio.to_thread(file.read, CHUNK):
            yield chunk


async def uploaded(coordinator: Coordinator, visitor: Visitor, blob: BlobRef) -> int:
    """How much of an upload is here. What `upload` would refuse is refused before a byte is on its way."""
    held = await asyncio.to_thread(coordinator.storage.blobs.uploaded, visitor.device, blob)
    if held < blob.size:
        _room_for(coordinator, visitor, blob)
        coordinator.storage.space.check(coordinator.low_water(), blob.size - held)
    return held


async def upload(
    coordinator: Coordinator, visitor: Visitor, blob: BlobRef, start: int, chunks: AsyncIterator[bytes]
) -> int:
    """Take a blob that an answer to one of the device's tasks needs. Returns how much of it is here."""
    lease, room = _room_for(coordinator, visitor, blob)
    blobs = coordinator.storage.blobs
    with expected(coordinator, blob.size - start) as came:
        receiving = await asyncio.to_thread(blobs.receive, visitor.device, blob, start, room)
        visitor.uploads[blob.sha256] = receiving

        async def counted() -> AsyncIterator[bytes]:
            nonlocal lease
            async for chunk in chunks:
                if not any(each is lease for each in coordinator.leases(visitor)):
                    lease, _ = _room_for(coordinator, visitor, blob)  # perhaps another one needs the blob
                coordinator.heard(visitor)
                coordinator.meter.up(lease.task.run, visitor.device, len(chunk))
                if visitor.takes(lease.task.run, lease.task.round, len(chunk)) > AGAIN * room:
                    raise TooOften(
                        f"device {visitor.device} has sent {AGAIN} times what the answer to its task needs",
                        "is its line, its memory or its program damaged?",
                        REST,
                    )
                came(len(chunk))
                yield chunk

        try:
            return await write(receiving, counted())
        finally:
            if visitor.uploads.get(blob.sha256) is receiving:
                del visitor.uploads[blob.sha256]


@contextmanager
def expected(coordinator: Coordinator, size: int) -> Iterator[Callable[[int], None]]:
    """Around an upload of so many bytes, to be told of each piece. Raises ServerFull for lack of room."""
    with coordinator.storage.space.expecting(max(0, size), coordinator.low_water()) as came:
        try:
            yield came
        except DiskFull as full:
            raise ServerFull(
                f"the server's disk is full: {full.message}",
                "its operator can free some; the upload is tried again",
            ) from None


def _room_for(coordinator: Coordinator, visitor: Visitor, blob: BlobRef) -> tuple[Lease, int]:
    """The lease that needs the blob, and the bytes that all uploads of the device may take.

    Raises Refused when the device has no task, BadPayload when no answer to it is that large.
    """
    leases = coordinator.leases(visitor)
    if not leases:
        raise Refused(f"device {visitor.device} has no task that needs an upload", "ask for the next task")
    most = 0
    for lease in leases:
        largest = largest_upload(lease.message, coordinator.limits)
        if blob.size <= largest:
            return lease, largest * most_models(lease.message)
        most = max(most, largest)
    raise BadPayload(
        f"an upload of {blob.size} bytes, where the task's answer needs at most {most}",
        "train the run's own model: same build()",
    )


async def write(receiving: Upload, chunks: AsyncIterator[bytes]) -> int:
    """Take what comes until the chunks end; it is synced, and checked when it is all, on return."""
    try:
        async for chunk in chunks:
            await asyncio.to_thread(receiving.append, chunk)
        return await asyncio.to_thread(receiving.finish)
    finally:
        receiving.close()
