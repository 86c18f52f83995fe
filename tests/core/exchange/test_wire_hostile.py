"""Hostile messages around payloads: each lie is BadPayload and named, and nothing else is ever raised."""

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message as Protobuf

from shoal.core.errors import Unavailable
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import (
    device_service_pb2,
    enrollment_service_pb2,
    fault_pb2,
    parts_pb2,
    placement_service_pb2,
    task_pb2,
)
from shoal.core.exchange._pb.fed.v1 import observer_service_pb2 as observers
from shoal.core.exchange._pb.fed.v1 import payload_pb2 as pb2
from shoal.core.exchange._pb.fed.v1 import tensor_pb2 as tensors
from shoal.core.exchange.link import Idle
from shoal.core.exchange.payload import INLINE
from shoal.core.identity.joining import Pending
from tests.core.exchange.wire_lies import LONG_NAME, LONG_TEXT, Lies, caught, with_unknown
from tests.core.exchange.wire_values import DECODERS

PAYLOAD = pb2.Payload(custom=pb2.Custom(kind="k"))
LEASE = task_pb2.Lease(run="r", round=1)
SECOND = Duration(seconds=1)


def hello(**changes: Any) -> device_service_pb2.HelloRequest:
    fields: dict[str, Any] = {"oldest_protocol": 1, "newest_protocol": 1}
    return device_service_pb2.HelloRequest(**fields | changes)


def welcome(**changes: Any) -> device_service_pb2.HelloResponse:
    fields: dict[str, Any] = {"protocol": 1, "session": "s", "poll": SECOND, "heartbeat": SECOND}
    return device_service_pb2.HelloResponse(**fields | changes)


def task(**changes: Any) -> device_service_pb2.NextTaskResponse:
    fields = {"lease": LEASE, "payload": PAYLOAD} | changes
    return device_service_pb2.NextTaskResponse(task=task_pb2.Task(**fields))


def idle(**changes: Any) -> device_service_pb2.NextTaskResponse:
    fields = {"earliest": SECOND, "latest": SECOND} | changes
    return device_service_pb2.NextTaskResponse(idle=task_pb2.Idle(**fields))


def placement(**changes: Any) -> placement_service_pb2.PlaceResponse:
    fields: dict[str, Any] = {"run": "r", "assignment": parts_pb2.ClusterAssignment(abstained=True)}
    answer = placement_service_pb2.Placement(**fields | changes)
    return placement_service_pb2.PlaceResponse(placement=answer)


RUN: dict[str, Any] = {"run": "r", "algorithm": "flux", "stage": 1, "round": 1}


def observation(*runs: dict[str, Any]) -> observers.ObserveRunsResponse:
    return observers.ObserveRunsResponse(runs=[observers.ObservedRun(**run) for run in runs])


HOSTILE: Lies = {
    "blob: long hash": (tensors.BlobRef(sha256=bytes(33)), "32 bytes"),
    "chunk: gap": (tensors.Chunk(offset=1, data=b"x"), "byte 1, expected 0"),
    "lease: no run": (task_pb2.Lease(round=1), "run is not set"),
    "lease: no round": (task_pb2.Lease(run="r"), "counts from 1"),
    "hello: no protocol": (hello(oldest_protocol=0), "counts from 1"),
    "hello: crossed protocols": (hello(oldest_protocol=2), "protocols 2 to 1"),
    "hello: long software": (hello(software=LONG_NAME), "257 characters"),
    "welcome: long software": (welcome(software=LONG_NAME), "257 characters"),
    "welcome: no session": (welcome(session=""), "session is not set"),
    "welcome: no protocol": (welcome(protocol=0), "counts from 1"),
    "welcome: no poll": (welcome(poll=None), "poll is not set"),
    "welcome: no heartbeat": (welcome(heartbeat=None), "heartbeat is not set"),
    "welcome: negative poll": (welcome(poll=Duration(seconds=-1)), "not a time"),
    "welcome: endless poll": (welcome(poll=Duration(seconds=1 << 40)), "not a time"),
    "welcome: odd nanoseconds": (welcome(heartbeat=Duration(nanos=-5)), "not a time"),
    "next: neither": (device_service_pb2.NextTaskResponse(), "next is not set"),
    "task: no lease": (task(lease=None), "run is not set"),
    "task: no payload": (task(payload=None), "payload is not set"),
    "task: an empty blob inside": (task(inline=[b"1", b""]), "blobs of 0 to 1 bytes"),
    "task: a large blob inside": (task(inline=[bytes(INLINE + 1)]), f"blobs of {INLINE + 1} to"),
    "task: many bytes inside": (task(inline=[bytes(INLINE)] * 5), "of 1310720 together"),
    "task: many blobs inside": (task(inline=[b"1"] * 65), "65 of them"),
    "report: a large blob inside": (
        task_pb2.Report(lease=LEASE, payload=PAYLOAD, inline=[bytes(INLINE + 1)]),
        f"blobs of {INLINE + 1} to",
    ),
    "task: long title": (task(title=LONG_TEXT), "65537 characters"),
    "task: unknown field in its payload": (task(payload=with_unknown(PAYLOAD)), "not known"),
    "idle: no window": (idle(earliest=None), "earliest is not set"),
    "idle: half a window": (idle(latest=None), "latest is not set"),
    "idle: crossed window": (idle(latest=Duration()), "before earliest"),
    "idle: long reason": (idle(reason=LONG_TEXT), "65537 characters"),
    "report: no lease": (task_pb2.Report(payload=PAYLOAD), "run is not set"),
    "report: no result": (task_pb2.Report(lease=LEASE), "result is not set"),
    "report: unset failure": (task_pb2.Report(lease=LEASE, failure=task_pb2.Failure()), "code is not set"),
    "report: long traceback": (
        task_pb2.Report(lease=LEASE, failure=task_pb2.Failure(code="c", details=LONG_TEXT)),
        "65537 characters",
    ),
    "report: long message": (
        task_pb2.Report(lease=LEASE, failure=task_pb2.Failure(code="c", message=LONG_TEXT)),
        "65537 characters",
    ),
    "receipt: no outcome": (task_pb2.Receipt(), "outcome is not set"),
    "receipt: unknown outcome": (task_pb2.Receipt(outcome=8), "value 8 is not known"),  # type: ignore[arg-type]
    "receipt: long reason": (
        task_pb2.Receipt(outcome=task_pb2.OUTCOME_LATE, reason=LONG_TEXT),
        "65537 characters",
    ),
    "place: long run": (placement_service_pb2.PlaceRequest(run=LONG_NAME), "257 characters"),
    "place: an answer about nothing": (
        placement_service_pb2.PlaceRequest(
            wish=placement_service_pb2.Wish(models=1, moved=placement_service_pb2.Moved(cluster="c0"))
        ),
        "no such name",
    ),
    "place: evidence of a newer peer": (with_unknown(placement_service_pb2.PlaceRequest()), "not known"),
    "place: unset descriptor": (
        placement_service_pb2.PlaceRequest(descriptor=parts_pb2.Descriptor()),
        "privacy is not set",
    ),
    "answer: neither": (placement_service_pb2.PlaceResponse(), "answer is not set"),
    "answer: unset question": (
        placement_service_pb2.PlaceResponse(question=placement_service_pb2.Question(run="r")),
        "payload is not set",
    ),
    "answer: question of no run": (
        placement_service_pb2.PlaceResponse(question=placement_service_pb2.Question(payload=PAYLOAD)),
        "run is not set",
    ),
    "placement: no run": (placement(run=""), "run is not set"),
    "placement: no assignment": (placement(assignment=None), "assignment is not set"),
    "placement: no model and no abstention": (
        placement(assignment=parts_pb2.ClusterAssignment(cluster="c0")),
        "did not abstain",
    ),
    "placement: unset model": (placement(model=parts_pb2.Weights()), "blob is not set"),
    "placement: unknown field": (with_unknown(placement()), "not known"),
    "observation: too many runs": (observation(*[RUN] * 10_001), "10001 of them"),
    "observation: a run without a name": (observation({**RUN, "run": ""}), "name is not set"),
    "observation: an unknown stage": (observation({**RUN, "stage": 99}), "value 99 is not known"),
    "observation: no stage": (observation({**RUN, "stage": 0}), "stage is not set"),
    "observation: round 0": (observation({**RUN, "round": 0}), "counts from 1"),
    "observation: a long title": (observation({**RUN, "title": LONG_TEXT}), "65537 characters"),
    "fault: no code": (fault_pb2.Fault(message="m"), "code is not set"),
    "fault: long message": (fault_pb2.Fault(code="c", message=LONG_TEXT), "65537 characters"),
    "fault: long hint": (fault_pb2.Fault(code="c", hint=LONG_TEXT), "65537 characters"),
}


def test_no_server_makes_a_device_call_without_a_pause_or_stay_away_for_long() -> None:
    never, nothing = Duration(seconds=366 * 86400), Duration()
    eager, lazy = (wire.welcome_from_pb(welcome(poll=each, heartbeat=each)) for each in (nothing, never))
    assert (eager.poll, eager.heartbeat, lazy.poll, lazy.heartbeat) == (0.0, 0.1, 3600.0, 3600.0)
    for least, most, found in ((nothing, nothing, (0.0, 1.0)), (never, never, (3600.0, 3600.0))):
        work = wire.next_from_pb(idle(earliest=least, latest=most))
        assert isinstance(work, Idle)
        assert (work.earliest, work.latest) == found
        fault = wire.fault_from_pb(fault_pb2.Fault(code="unavailable", earliest=least, latest=most))
        assert isinstance(fault, Unavailable)
        assert fault.window == found
    for retry, waits in ((nothing, 1.0), (never, 60.0)):
        pending = enrollment_service_pb2.Pending(fingerprint=bytes(32), retry_in=retry)
        answer = wire.admitted_from_pb(enrollment_service_pb2.JoinResponse(pending=pending))
        assert isinstance(answer, Pending)
        assert answer.retry_in == waits


@pytest.mark.parametrize("case", HOSTILE)
def test_a_lie_is_named(case: str) -> None:
    caught(HOSTILE[case])


@pytest.mark.parametrize("message", [hello(), welcome(), idle(), task(), placement(), observation(RUN)])
def test_the_messages_that_the_lies_are_made_of_are_fine(message: Protobuf) -> None:
    DECODERS[type(message)](message)


@pytest.mark.parametrize("message", [hello(), welcome(), idle(), task()])
def test_around_payloads_an_unknown_field_is_passed_over(message: Protobuf) -> None:
    decoder = DECODERS[type(message)]
    assert decoder(with_unknown(message)) == decoder(message)
