"""A device's visit: hello, tasks, reports and what became of them."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from shoal.core.errors import BadPayload
from shoal.core.exchange._pb.fed.v1 import device_service_pb2, task_pb2
from shoal.core.exchange.link import (
    MAX_ADDRESSES,
    Failure,
    Hello,
    Idle,
    Outcome,
    Receipt,
    Report,
    Task,
    Welcome,
)
from shoal.core.exchange.payload import INLINE, INLINE_ALL
from shoal.core.exchange.tensors import MAX_NAME
from shoal.core.exchange.wire.checks import (
    LONGEST_WAIT,
    MAX_ENTRIES,
    at_least_one,
    between,
    for_people,
    limited,
    meaning,
    name,
    present,
    seconds_from_pb,
    seconds_to_pb,
    text,
    window_from_pb,
)
from shoal.core.exchange.wire.payload import payload_from_pb, payload_to_pb
from shoal.core.types import Bytes, RunId

_OUTCOMES: Mapping[int, Outcome] = {
    task_pb2.Outcome.Value(f"OUTCOME_{outcome.name}"): outcome for outcome in Outcome
}


ROOM_FOR_INLINE = 2 << 20
"""Bytes of a task or report that leave room for blobs in the same message, which has at most 4 MiB."""
MAX_RUNS = 1024
"""That go on, in an Idle: a server with more does not name them."""
SHORTEST_HEARTBEAT = 0.1
"""Seconds between two calls of a device that works, at least, whatever its server says."""


class Lease(NamedTuple):
    """Which unit of work, apart from the device."""

    run: RunId
    round: int
    attempt: int


def hello_to_pb(hello: Hello) -> device_service_pb2.HelloRequest:
    return device_service_pb2.HelloRequest(**vars(hello))


def hello_from_pb(pb: device_service_pb2.HelloRequest) -> Hello:
    oldest, newest = at_least_one(pb.oldest_protocol, "the oldest protocol"), pb.newest_protocol
    if newest < oldest:
        raise BadPayload(f"hello: protocols {oldest} to {newest} are none")
    return Hello(
        text(pb.software, "the software's name", MAX_NAME),
        oldest,
        newest,
        text(pb.mark, "a mark", MAX_NAME),
    )


def welcome_to_pb(welcome: Welcome) -> device_service_pb2.HelloResponse:
    times = {name: seconds_to_pb(getattr(welcome, name)) for name in ("poll", "heartbeat", "spread")}
    return device_service_pb2.HelloResponse(**vars(welcome) | times)


def welcome_from_pb(pb: device_service_pb2.HelloResponse) -> Welcome:
    present(pb, "poll", "the answer to hello")
    present(pb, "heartbeat", "the answer to hello")
    limited(len(pb.addresses), MAX_ADDRESSES, "addresses")
    return Welcome(
        text(pb.software, "the software's name", MAX_NAME),
        at_least_one(pb.protocol, "the protocol"),
        name(pb.session, "a session"),
        between(seconds_from_pb(pb.poll, "poll"), 0.0, LONGEST_WAIT),
        between(seconds_from_pb(pb.heartbeat, "heartbeat"), SHORTEST_HEARTBEAT, LONGEST_WAIT),
        seconds_from_pb(pb.spread, "spread") if pb.HasField("spread") else 1.0,
        text(pb.mark, "a mark", MAX_NAME),
        tuple(name(each, "an address") for each in pb.addresses),
    )


def lease_to_pb(lease: Lease) -> task_pb2.Lease:
    return task_pb2.Lease(**lease._asdict())


def lease_from_pb(pb: task_pb2.Lease) -> Lease:
    """Also refuses the default instance that an unset lease reads as."""
    return Lease(name(pb.run, "a lease's run"), at_least_one(pb.round, "a lease's round"), pb.attempt)


def next_to_pb(work: Task | Idle) -> device_service_pb2.NextTaskResponse:
    if isinstance(work, Task):
        return device_service_pb2.NextTaskResponse(task=_task_to_pb(work))
    return device_service_pb2.NextTaskResponse(idle=_idle_to_pb(work))


def next_from_pb(pb: device_service_pb2.NextTaskResponse) -> Task | Idle:
    match pb.WhichOneof("next"):
        case "task":
            return _task_from_pb(pb.task)
        case "idle":
            return _idle_from_pb(pb.idle)
        case None:
            raise BadPayload("the answer to next task: next is not set")


def _task_to_pb(task: Task) -> task_pb2.Task:
    pb = task_pb2.Task(
        lease=lease_to_pb(Lease(task.run, task.round, task.attempt)),
        seed=task.seed,
        title=for_people(task.title),
        payload=payload_to_pb(task.payload),
        terms=task.terms,
        inline_report=task.inline_report,
    )
    _carry(task.inline, pb)
    return pb


def _task_from_pb(pb: task_pb2.Task) -> Task:
    present(pb, "payload", "a task")
    lease, title = lease_from_pb(pb.lease), text(pb.title, "a task's title")
    payload, terms, inline = (
        payload_from_pb(pb.payload),
        text(pb.terms, "the terms of a run"),
        _carried(pb.inline),
    )
    return Task(*lease, pb.seed, title, payload, terms, inline, min(pb.inline_report, INLINE))


def _carry(blobs: Iterable[Bytes], message: task_pb2.Task | task_pb2.Report) -> None:
    """Put blobs into a message, unless it is large: then the other side asks for them, or gets an upload."""
    if message.ByteSize() <= ROOM_FOR_INLINE:
        message.inline.extend(bytes(blob) for blob in blobs)


def _carried(blobs: Collection[bytes]) -> tuple[Bytes, ...]:
    limited(len(blobs), MAX_ENTRIES, "blobs inside of a message")
    sizes = [len(blob) for blob in blobs]
    if sizes and not (min(sizes) and max(sizes) <= INLINE and sum(sizes) <= INLINE_ALL):
        raise BadPayload(
            f"a message carries blobs of {min(sizes)} to {max(sizes)} bytes, and of {sum(sizes)} together",
            f"1 to {INLINE} bytes each are taken, and {INLINE_ALL} together; upload larger ones",
        )
    return tuple(blobs)


def _idle_to_pb(idle: Idle) -> task_pb2.Idle:
    few = len(idle.going_on or ()) <= MAX_RUNS  # of a part of them, a device would forget the others
    return task_pb2.Idle(
        reason=for_people(idle.reason),
        earliest=seconds_to_pb(idle.earliest),
        latest=seconds_to_pb(idle.latest),
        finished=idle.finished,
        going_on=task_pb2.Runs(runs=idle.going_on) if idle.going_on is not None and few else None,
    )


def _idle_from_pb(pb: task_pb2.Idle) -> Idle:
    window = window_from_pb(pb, "idle")
    going_on: tuple[RunId, ...] | None = None
    if pb.HasField("going_on"):
        limited(len(pb.going_on.runs), MAX_RUNS, "idle: runs that go on")
        going_on = tuple(name(run, "a run's name") for run in pb.going_on.runs)
    return Idle(text(pb.reason, "idle: reason"), *window, pb.finished, going_on)


def report_to_pb(report: Report) -> task_pb2.Report:
    lease = lease_to_pb(Lease(report.run, report.round, report.attempt))
    if isinstance(report.result, Failure):
        return task_pb2.Report(lease=lease, failure=_failure_to_pb(report.result))
    pb = task_pb2.Report(lease=lease, payload=payload_to_pb(report.result))
    _carry(report.inline, pb)
    return pb


def report_from_pb(pb: task_pb2.Report) -> Report:
    lease = lease_from_pb(pb.lease)
    match pb.WhichOneof("result"):
        case "payload":
            return Report(*lease, payload_from_pb(pb.payload), _carried(pb.inline))
        case "failure":
            return Report(*lease, _failure_from_pb(pb.failure))
        case None:
            raise BadPayload("a report: result is not set")


def _failure_to_pb(failure: Failure) -> task_pb2.Failure:
    return task_pb2.Failure(
        code=failure.code, message=for_people(failure.message), details=for_people(failure.details)
    )


def _failure_from_pb(pb: task_pb2.Failure) -> Failure:
    return Failure(
        name(pb.code, "a failure's code"),
        text(pb.message, "a failure's message"),
        text(pb.details, "a failure's details"),
    )


def receipt_to_pb(receipt: Receipt) -> task_pb2.Receipt:
    outcome = task_pb2.Outcome.Value(f"OUTCOME_{receipt.outcome.name}")
    return task_pb2.Receipt(outcome=outcome, reason=for_people(receipt.reason), mark=receipt.mark)


def receipt_from_pb(pb: task_pb2.Receipt) -> Receipt:
    return Receipt(
        meaning(_OUTCOMES, pb.outcome, "a receipt's outcome"),
        text(pb.reason, "a receipt's reason"),
        text(pb.mark, "a mark", MAX_NAME),
    )
