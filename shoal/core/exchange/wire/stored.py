"""Encode tasks, reports and payloads as protobuf bytes, for a disk or a pipe, and decode them."""

import hashlib
from dataclasses import replace

from shoal.core.errors import BadPayload
from shoal.core.exchange._pb.fed.v1 import device_service_pb2, payload_pb2, task_pb2
from shoal.core.exchange.link import Report, Task
from shoal.core.exchange.payload import Payload
from shoal.core.exchange.wire.bulk import message_from_bytes
from shoal.core.exchange.wire.payload import payload_from_pb, payload_to_pb
from shoal.core.exchange.wire.visit import next_from_pb, next_to_pb, report_from_pb, report_to_pb


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


def work_key(task: Task) -> str:
    """What is the same, and only then, when the same work is leased again: 64 hex digits."""
    same = replace(task, attempt=0, title="", terms="", inline=(), inline_report=0)
    return hashlib.sha256(task_to_bytes(same)).hexdigest()
