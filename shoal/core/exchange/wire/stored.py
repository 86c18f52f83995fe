"""Encode what is stored, or passes a pipe, as protobuf bytes, and decode it."""

import hashlib
from dataclasses import replace

from shoal.core.errors import BadPayload, ShoalError
from shoal.core.exchange._pb.fed.v1 import (
    device_service_pb2,
    fault_pb2,
    payload_pb2,
    placement_service_pb2,
    task_pb2,
)
from shoal.core.exchange.choosing import Wish
from shoal.core.exchange.link import Placement, Question, Report, Task
from shoal.core.exchange.parts import Evidence
from shoal.core.exchange.payload import Payload
from shoal.core.exchange.seal import Signed
from shoal.core.exchange.wire.bulk import message_from_bytes
from shoal.core.exchange.wire.faults import fault_from_pb, fault_to_pb
from shoal.core.exchange.wire.payload import payload_from_pb, payload_to_pb
from shoal.core.exchange.wire.placement import (
    answer_from_pb,
    answer_to_pb,
    place_from_pb,
    place_to_pb,
    seal_from_pb,
    seal_to_pb,
)
from shoal.core.exchange.wire.visit import next_from_pb, next_to_pb, report_from_pb, report_to_pb
from shoal.core.types import RunId


def task_to_bytes(task: Task) -> bytes:
    """The same bytes for the same task, every time."""
    return next_to_pb(task).SerializeToString(deterministic=True)


def task_from_bytes(data: bytes) -> Task:
    """Raises BadPayload."""
    task = next_from_pb(message_from_bytes(device_service_pb2.NextTaskResponse, data))
    if not isinstance(task, Task):
        raise BadPayload("expected a task, found none")
    return task


def report_to_bytes(report: Report) -> bytes:
    return report_to_pb(report).SerializeToString()


def report_from_bytes(data: bytes) -> Report:
    """Raises BadPayload."""
    return report_from_pb(message_from_bytes(task_pb2.Report, data))


def payload_to_bytes(payload: Payload) -> bytes:
    """The same bytes for the same payload, whatever the order of its parts."""
    return payload_to_pb(payload).SerializeToString(deterministic=True)


def payload_from_bytes(data: bytes) -> Payload:
    """Raises BadPayload."""
    return payload_from_pb(message_from_bytes(payload_pb2.Payload, data))


def place_to_bytes(run: RunId, evidence: Evidence | Wish | None) -> bytes:
    return place_to_pb(run, evidence).SerializeToString()


def place_from_bytes(data: bytes) -> tuple[RunId, Evidence | Wish | None]:
    """Raises BadPayload."""
    return place_from_pb(message_from_bytes(placement_service_pb2.PlaceRequest, data))


def answer_to_bytes(answer: Question | Placement) -> bytes:
    return answer_to_pb(answer).SerializeToString()


def answer_from_bytes(data: bytes) -> Question | Placement:
    """Raises BadPayload."""
    return answer_from_pb(message_from_bytes(placement_service_pb2.PlaceResponse, data))


def seal_to_bytes(seal: Signed | None) -> bytes:
    return seal_to_pb(seal).SerializeToString()


def seal_from_bytes(data: bytes) -> Signed | None:
    """Raises BadPayload."""
    return seal_from_pb(message_from_bytes(placement_service_pb2.GetSealResponse, data))


def fault_to_bytes(error: ShoalError) -> bytes:
    return fault_to_pb(error).SerializeToString()


def fault_from_bytes(data: bytes) -> ShoalError:
    """The error to raise on this side. Raises BadPayload."""
    return fault_from_pb(message_from_bytes(fault_pb2.Fault, data))


def work_key(task: Task) -> str:
    """What is the same, and only then, when the same work is leased again: 64 hex digits."""
    same = replace(task, attempt=0, title="", terms="", inline=(), inline_report=0)
    return hashlib.sha256(task_to_bytes(same)).hexdigest()
