"""Small models inside of tasks: a device does not have to fetch them."""

from contextlib import suppress
from dataclasses import replace

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.visits.visitor import Visitor
from shoal.core.exchange.link import Task
from shoal.core.exchange.payload import INLINE
from shoal.core.types import Bytes

AT_ONCE = 256 << 20
"""Bytes that the reports of a round may carry all together, since they may all arrive at once and are in
memory then. Of more devices, or larger models, they are uploaded, which is limited by itself; and so they
are where a bucket has what lasts."""


async def filled(coordinator: Coordinator, visitor: Visitor, task: Task) -> Task:
    """The task with the small ones of its blobs.

    A blob goes to a device once: if the answer is lost on its way, the device asks for the task again and
    fetches what it lacks.
    """
    found, blobs = list[Bytes](), coordinator.storage.blobs
    small = task.payload.small_blobs(INLINE)
    for blob in small:
        if blob.sha256 not in visitor.inlined:
            with suppress(OSError):  # the device gets to know of it when it fetches the blob
                found.append(await blobs.frames.whole(blobs.path(blob.sha256), blob.sha256, blob.size))
                coordinator.meter.down(task.run, visitor.device, blob.size)
    visitor.inlined = frozenset(blob.sha256 for blob in small)
    asked = max(1, len(coordinator.runs[task.run].engine.plan.tasks))
    most = 0 if blobs.copies.are_complete else min(INLINE, AT_ONCE // asked)
    return replace(task, inline=tuple(found), inline_report=most)
