"""The transfer of blobs: which ones a device may fetch and upload, and how many bytes are accepted."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.runs import Lease
from fedserver.coordinator.visits.visitor import Visitor
from fedserver.store.content.blobs import Blobs
from fedserver.store.content.frames import Frame
from fedserver.store.content.upload import Upload
from shoal.core.errors import BadPayload, DiskFull, NotFound, Refused, ServerFull, TooOften
from shoal.core.exchange.admit import largest_upload, most_models
from shoal.core.exchange.payload import BlobRef
from shoal.core.exchange.wire import CHUNK, MAX_CHUNK, Line
from shoal.core.types import Bytes, RunId
from shoal.shell.disk import storing

log = logging.getLogger("shoal.server")

AT_ONCE, LATEST = 2, 1.0
"""How many of the largest chunks are written at a time, and the seconds that the first of them may wait."""
MAX_REPEATS, PAUSE = 16, (60.0, 120.0)
"""How many times a device may upload the bytes that a round needs from it, since connections break and the
last bytes are sent again; and after how many seconds it may try again. Each round counts from zero."""


async def fetch(
    coordinator: Coordinator, visitor: Visitor, blob: BlobRef, start: int
) -> AsyncGenerator[Frame, None]:
    """A blob from byte `start` on, for a device.

    Raises NotFound unless its task or placement names it.
    """
    run = _run_of(coordinator, visitor, blob)
    async for frame in read(coordinator.storage.blobs, blob, start, visitor.line):
        coordinator.heard(visitor)
        coordinator.meter.down(run, visitor.device, len(frame.data))
        yield frame


def _run_of(coordinator: Coordinator, visitor: Visitor, blob: BlobRef) -> RunId:
    """The run whose task or placement named this blob to the device. Raises NotFound if there is none."""
    for lease in coordinator.leases(visitor):
        if any(weights.blob == blob for weights in lease.task.payload.weights()):
            return lease.task.run
    if found := visitor.granted.get(blob.sha256):
        return found
    coordinator.runs.check_all_recovered()
    raise NotFound(
        f"blob {blob.sha256[:12]} is not for device {visitor.device}",
        "ask for the next task, or for a placement",
    )


async def read(blobs: Blobs, blob: BlobRef, start: int, line: Line) -> AsyncGenerator[Frame, None]:
    """A blob from byte `start` on, read without blocking the event loop. line: to who gets it."""
    if start > blob.size:
        raise BadPayload(f"a blob of {blob.size} bytes has no byte {start}")
    path, clock = blobs.path(blob.sha256), asyncio.get_running_loop().time
    with storing(path):
        try:
            file = await asyncio.to_thread(blobs.open, blob.sha256)
        except FileNotFoundError:
            raise NotFound(f"blob {blob.sha256[:12]} is gone", "ask for the next task") from None
        at, began = start, clock()
        try:
            while at < blob.size:
                frame = await blobs.frames.get(file, blob.sha256, at, line.next(at, CHUNK))
                if not frame.data:
                    return
                at += len(frame.data)
                yield frame
        finally:
            file.close()
            line.moved(at - start, clock() - began)


async def uploaded(coordinator: Coordinator, visitor: Visitor, blob: BlobRef) -> int:
    """How many bytes of an upload have arrived. Raises what `upload` would raise, before any byte is sent."""
    held = await asyncio.to_thread(coordinator.storage.blobs.uploaded, visitor.device, blob)
    if held < blob.size:
        _room_for(coordinator, visitor, blob)
        coordinator.storage.space.check(coordinator.low_water(), blob.size - held)
    return held


async def upload(
    coordinator: Coordinator, visitor: Visitor, blob: BlobRef, start: int, chunks: AsyncIterator[Bytes]
) -> int:
    """Receive a blob for the answer to one of the device's tasks. Returns how many bytes have arrived."""
    lease, room = _room_for(coordinator, visitor, blob)
    blobs = coordinator.storage.blobs
    with expected(coordinator, blob.size - start) as arrived:
        receiving = await asyncio.to_thread(blobs.receive, visitor.device, blob, start, room)
        visitor.uploads[blob.sha256] = receiving

        def count(size: int) -> None:
            nonlocal lease
            if not any(each is lease for each in coordinator.leases(visitor)):
                lease, _ = _room_for(coordinator, visitor, blob)  # another task may need the same blob
            coordinator.heard(visitor)
            coordinator.meter.up(lease.task.run, visitor.device, size)
            if visitor.takes(lease.task.run, lease.task.round, size) > MAX_REPEATS * room:
                raise TooOften(
                    f"device {visitor.device} sent {MAX_REPEATS} times the bytes that its task needs",
                    "check its network connection, its memory and its software",
                    PAUSE,
                )
            arrived(size)

        try:
            return await write(receiving, chunks, count)
        finally:
            if visitor.uploads.get(blob.sha256) is receiving:
                del visitor.uploads[blob.sha256]


@contextmanager
def expected(coordinator: Coordinator, size: int) -> Iterator[Callable[[int], None]]:
    """Reserve disk space for an upload: see `DiskSpace.expecting`.

    Raises ServerFull if there is too little.
    """
    with coordinator.storage.space.expecting(max(0, size), coordinator.low_water()) as arrived:
        try:
            yield arrived
        except DiskFull as full:
            log.warning("an upload cannot be stored: %s", full)
            raise ServerFull(
                "the server's disk is full, or it has too many files open",
                "the server's operator can free some space; the device tries again",
            ) from None


def _room_for(coordinator: Coordinator, visitor: Visitor, blob: BlobRef) -> tuple[Lease, int]:
    """The lease that needs the blob, and how many bytes all uploads of the device may use.

    Raises Refused if the device has no task, BadPayload if the blob is too large for the answer to any task.
    """
    leases = coordinator.leases(visitor)
    if not leases:
        coordinator.runs.check_all_recovered()
        raise Refused(f"device {visitor.device} has no task that needs an upload", "ask for the next task")
    most = 0
    for lease in leases:
        largest = largest_upload(lease.message, coordinator.settings.model)
        if blob.size <= largest:
            return lease, largest * most_models(lease.message)
        most = max(most, largest)
    raise BadPayload(
        f"an upload has {blob.size} bytes, but the task's answer needs at most {most}",
        "train the run's own model, with the same build()",
    )


async def write(receiving: Upload, chunks: AsyncIterator[Bytes], count: Callable[[int], None]) -> int:
    """Write all chunks, the largest ones some at a time, on a thread while the next ones arrive.

    A line that brings smaller ones is slow: each of these is written at once. count: called
    with the bytes that are about to be written; what it raises ends the upload. On return all are synced, and
    verified if the upload is complete.
    """
    loop, held = asyncio.get_running_loop(), list[Bytes]()
    passed_on = loop.time()
    writing: asyncio.Future[None] | None = None

    async def pass_on() -> None:
        nonlocal held, writing, passed_on
        pieces, held, passed_on = held, [], loop.time()
        if writing is not None:
            await writing
        count(sum(map(len, pieces)))
        writing = loop.run_in_executor(None, receiving.append, *pieces)

    try:
        try:
            async for chunk in chunks:
                held.append(chunk)
                late = loop.time() - passed_on > LATEST
                if late or len(chunk) < MAX_CHUNK or len(held) == AT_ONCE:
                    await pass_on()
        finally:
            if held:  # where the upload was cut, what came before goes on
                await pass_on()
        if writing is not None:
            await writing
        return await loop.run_in_executor(None, receiving.finish)
    finally:
        if writing is not None:
            await asyncio.gather(writing, return_exceptions=True)
        receiving.close()
