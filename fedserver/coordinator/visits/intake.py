"""Intake of reports: a report is checked, stored on disk, and only then counted.

Reports are checked at the same time, since that takes long: it reads all their tensors. Whether a report
counts is decided in turn (`counting`), and never while a round opens or ends. Otherwise two copies of a
report, or a report and the deadline of its round, could both pass their checks before either has had its
effect.
"""

import asyncio
import logging
from collections.abc import Collection
from functools import partial

from fedserver.coordinator.answers import ASK, NOTHING_NEW, REFUSALS
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.runs import Run
from fedserver.coordinator.visits.counting import not_now
from fedserver.store.content.in_file import FileTensors
from fedserver.store.identities.audit import Event
from fedserver.store.journal import released
from fedserver.store.records import ReportRecord
from fedserver.store.reports import Arrival
from shoal.core.engine.events import Failed, Left
from shoal.core.errors import BadPayload, DiskFull, StaleReport
from shoal.core.exchange.admit import admit_message, admit_payload, largest_upload
from shoal.core.exchange.link import Failure, Outcome, Receipt, Report
from shoal.core.exchange.messages import Message
from shoal.core.exchange.payload import INLINE, Payload, Weights, decode
from shoal.core.exchange.summing import Announce, Announced
from shoal.core.exchange.tensors import unpack
from shoal.core.exchange.wire import payload_to_bytes
from shoal.core.privacy.secure.cohort import check_announcement
from shoal.core.types import Bytes, DeviceId, Tensors

log = logging.getLogger("shoal.server")

DETAILS, REASON = 8192, 500
"""How many characters of a traceback (its end) go into the log, and how many of why a device is missing."""


async def receive(coordinator: Coordinator, device: DeviceId, report: Report) -> Receipt:
    """Receive a report, and return its receipt. A report counts only once, and only if it is on disk.

    Raises NotFound if blobs of the report are missing: they never arrived, newer uploads took their space, or
    a failed disk lost them. This is not the device's fault, and nothing is decided: the device uploads them
    and reports again.
    """
    receipt = await _received(coordinator, device, report)
    failed = isinstance(report.result, Failure) and receipt.outcome is Outcome.ACCEPTED
    coordinator.meter.reports["failed" if failed else receipt.outcome.name.lower()] += 1
    return receipt


async def _received(coordinator: Coordinator, device: DeviceId, report: Report) -> Receipt:
    run = coordinator.runs.get(report.run)
    if run is None:
        coordinator.runs.check_recovered(report.run)
        return Receipt(Outcome.LATE, f"there is no run {report.run!r}")
    if (
        isinstance(report.result, Failure)
        and report.result.code in REFUSALS
        and device not in coordinator.barred
    ):
        # An answer of the device to the run, not to one of its rounds: it counts when the round is over, too.
        run.answers[device] = report.result.code
    task = await _answered(coordinator, run, device, report)
    if isinstance(task, Receipt):
        if task.outcome is Outcome.REFUSED:
            await coordinator.in_turn(_disputed(run, device, report.round, task.reason))
        elif task.outcome is Outcome.LATE and _has_nothing_new(report):
            await coordinator.in_turn(run.advance(_sits_out(device)))
        return task
    if isinstance(report.result, Failure):
        if report.result.code == BadPayload.code:
            receipt = await coordinator.in_turn(_suspected(run, device, report))
            if receipt is not None:
                return receipt
        return await coordinator.in_turn(_failed(run, device, report, report.result))
    try:
        # Out of turn, and a large model on a thread: reading all of its tensors would hold up every other
        # device. Of a small one, going to a thread and back would cost more than the reading.
        admit = partial(_admit, coordinator, run, device, task, report.result, report.inline)
        is_small = sum(weights.blob.size for weights in report.result.weights()) <= INLINE
        inline = admit() if is_small else await asyncio.to_thread(admit)
    except BadPayload as bad:
        await _drop(coordinator, device, report)
        if run.refused.get(device) != report.round:  # in a new session a device can repeat it at once
            run.refused[device] = report.round
            facts = {"run": run.run, "round": report.round, "device": device, "reason": bad.message}
            await coordinator.storage.note(Event.UPDATE_REFUSED, **facts)
        return await coordinator.in_turn(_refused(run, device, report, bad))
    names = tuple(weights.blob.sha256 for weights in report.result.weights())
    try:
        await coordinator.storage.send_copies(device, names)
    except DiskFull as fault:
        raise not_now(device, fault) from None
    await released.record_report(coordinator.storage, run.run, device, task, report.result, run.left_open)
    coordinator.meter.up(run.run, device, sum(map(len, inline.values())))
    record = ReportRecord.of(report.run, report.round, device, report.attempt, report.result)
    receipt = await coordinator.counting.count(run, Arrival(record, names, inline))
    if receipt is None:
        why = "its task was withdrawn or its round is over"
        receipt = await _not_counted(coordinator, device, report, why)
        if receipt.outcome is Outcome.REFUSED and device not in coordinator.barred:
            await coordinator.in_turn(_disputed(run, device, report.round, receipt.reason))
    return receipt


async def _answered(
    coordinator: Coordinator, run: Run, device: DeviceId, report: Report
) -> Message | Receipt:
    """The task that a report answers, or the receipt for a report that no task waits for.

    It saves reading the tensors of a report that cannot count; those of a duplicate are no longer among the
    uploads. What decides is `counting`, in turn: meanwhile the round may have ended, or another copy of the
    report may have been counted.
    """
    try:
        return _expected(run, device, report)
    except StaleReport as stale:
        return await _not_counted(coordinator, device, report, str(stale))


async def _not_counted(coordinator: Coordinator, device: DeviceId, report: Report, why: str) -> Receipt:
    """The receipt for a report that is not expected. why: unless one of this device was counted before."""
    stored = await coordinator.storage.call(coordinator.storage.reports.get, report.run, report.round, device)
    if stored is not None:
        if isinstance(report.result, Payload) and stored.data == payload_to_bytes(report.result):
            return Receipt(Outcome.DUPLICATE, "the same report was counted before")
        return Receipt(Outcome.REFUSED, "another report of this device was counted in this round before")
    await _drop(coordinator, device, report)
    if device in coordinator.barred:  # it was revoked while this call was in progress
        return Receipt(Outcome.REFUSED, "the device was revoked")
    return Receipt(Outcome.LATE, why)


def _expected(run: Run, device: DeviceId, report: Report) -> Message:
    """The task that the report answers. Raises StaleReport if no task waits for it."""
    if not run.active:
        raise StaleReport(f"run {run.run} is over: {run.reason}", "ask for the next task")
    return run.engine.expects(device, report.round, report.attempt)


def _admit(
    coordinator: Coordinator,
    run: Run,
    device: DeviceId,
    task: Message,
    payload: Payload,
    pieces: Collection[Bytes],
) -> dict[str, Bytes]:
    """The blobs that came inside of a report, by name. Raises BadPayload, NotFound or ServerFull.

    Everything that does not need the tensors is checked before one is opened.
    """
    blobs = coordinator.storage.blobs
    # What lasts in a bucket is uploaded: the device does so when it hears that the bytes are missing.
    inline = {} if blobs.copies.are_complete else payload.blobs_in(pieces)

    def arrived(weights: Weights) -> Tensors:
        if (data := inline.get(weights.blob.sha256)) is not None:
            return unpack(weights.manifest, memoryview(data))
        return FileTensors(blobs.arrived(device, weights.blob.sha256), weights.manifest)

    admit_payload(task, payload)
    if inline:
        _check_size(coordinator, task, [len(data) for data in inline.values()])
    reply = decode(payload, {payload.kind: task.reply}, arrived)
    admit_message(task, reply)
    if isinstance(task, Announce) and isinstance(reply, Announced):
        # The other devices would refuse a cohort in which one did not sign: so one liar would end the round.
        check_announcement(task.session, device, reply.keys.by_device[""], coordinator.signatures)
    return inline


def _check_size(coordinator: Coordinator, task: Message, sizes: list[int]) -> None:
    """What `transfer` checks of an upload."""
    if max(sizes) > (largest := largest_upload(task, coordinator.settings.model)):
        raise BadPayload(
            f"a report carries {max(sizes)} bytes, but the task's answer needs at most {largest}",
            "train the run's own model, with the same build()",
        )
    # In the spool, and in a file of its own.
    coordinator.storage.space.check(coordinator.low_water(), 2 * sum(sizes))


async def _suspected(run: Run, device: DeviceId, report: Report) -> Receipt | None:
    """A device says that the bytes of its task are wrong: verify our own, before it is blamed.

    Returns the receipt if they were damaged. Then the device keeps its task, or gets one with other models.
    """
    lease = run.lease(device)
    if lease is None:
        return None
    names = [weights.blob.sha256 for weights in lease.task.payload.weights()]
    damaged, lost = await run.repairs.examine(run.repairs.complained(names))
    if lost:
        await run.go_back(lost)
    why = "the bytes of the task were damaged on the server's disk: ask for the next task"
    return (
        Receipt(Outcome.LATE, why) if damaged or run.repairs.were_damaged(names, run.engine.round) else None
    )


async def _disputed(run: Run, device: DeviceId, round: int, reason: str) -> None:
    """Log a second, different report once, for the operator: two processes may be sharing one identity."""
    if (device, round) not in run.disputed:
        run.disputed.add((device, round))
        await run.note(f"a report of round {round} was refused: {reason}", device)


async def _failed(run: Run, device: DeviceId, report: Report, failure: Failure) -> Receipt:
    details = f"\n{failure.details[-DETAILS:]}" if failure.details else ""
    asks = failure.code == ASK
    reason = "it lacks its owner's consent" if asks else f"it failed: {failure.message[:REASON]}"
    await run.note(f"{reason} [{failure.code}]{details}", device)
    failed = Failed(device, report.round, report.attempt, reason, asks)
    event = _sits_out(device) if _has_nothing_new(report) else failed
    return await _without(run, event, report, Receipt(Outcome.ACCEPTED))


def _has_nothing_new(report: Report) -> bool:
    return isinstance(report.result, Failure) and report.result.code == NOTHING_NEW


def _sits_out(device: DeviceId) -> Left:
    """Without new data a device is asked no more: it will have none in this run."""
    return Left(device, "it has no new data", for_good=True)


async def _refused(run: Run, device: DeviceId, report: Report, bad: BadPayload) -> Receipt:
    reason = f"its report was refused: {bad.message[:REASON]}"
    await run.note(reason, device)
    event = Failed(device, report.round, report.attempt, reason)
    return await _without(run, event, report, Receipt(Outcome.REFUSED, str(bad)))


async def _without(run: Run, event: Failed | Left, report: Report, receipt: Receipt) -> Receipt:
    """Let the round continue without this device."""
    try:
        _expected(run, event.device, report)
    except StaleReport as stale:
        if isinstance(event, Failed):
            return Receipt(Outcome.LATE, str(stale))
        receipt = Receipt(Outcome.LATE, str(stale))  # too late for its round, and not for the run
    await run.advance(event)
    return receipt


async def _drop(coordinator: Coordinator, device: DeviceId, report: Report) -> None:
    """Delete the uploads of a report that does not count."""
    if isinstance(report.result, Payload):
        names = [weights.blob.sha256 for weights in report.result.weights()]
        await asyncio.to_thread(coordinator.storage.blobs.discard, device, names)
