"""Tasks, reports and payloads as bytes: in the outbox, and in the pipes to the training process."""

import hashlib
from dataclasses import replace
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from fedcore import wire
from fedcore.errors import BadPayload
from fedcore.link import Failure, Idle, Report, Task
from fedcore.payload import Payload

T = TypeVar("T", bound=Message)

# The generated classes are the wire's own affair: what it makes says which ones to read with.
_NEXT = type(wire.next_to_pb(Idle("", 0.0, 0.0)))
_REPORT = type(wire.report_to_pb(Report("any", 1, 0, Failure("any", ""))))
_PAYLOAD = type(wire.payload_to_pb(Payload("any", {})))

LENGTH = 4
"""Bytes of the big-endian number before each message in a pipe."""
MAX_MESSAGE = 64 << 20


def task_to_bytes(task: Task) -> bytes:
    return wire.next_to_pb(task).SerializeToString(deterministic=True)


def task_from_bytes(data: bytes) -> Task:
    """Raises BadPayload."""
    task = wire.next_from_pb(_parse(_NEXT, data))
    if not isinstance(task, Task):
        raise BadPayload("a task is due, found none")
    return task


def report_to_bytes(report: Report) -> bytes:
    return wire.report_to_pb(report).SerializeToString()


def report_from_bytes(data: bytes) -> Report:
    """Raises BadPayload."""
    return wire.report_from_pb(_parse(_REPORT, data))


def payload_to_bytes(payload: Payload) -> bytes:
    return wire.payload_to_pb(payload).SerializeToString()


def payload_from_bytes(data: bytes) -> Payload:
    """Raises BadPayload."""
    return wire.payload_from_pb(_parse(_PAYLOAD, data))


def work_key(task: Task) -> str:
    """What is the same, and only then, when the same work is leased again: 64 hex digits."""
    return hashlib.sha256(task_to_bytes(replace(task, attempt=0, title=""))).hexdigest()


def framed(data: bytes) -> bytes:
    """`data` as it goes through a pipe."""
    return len(data).to_bytes(LENGTH, "big") + data


def length_of(header: bytes) -> int:
    """How many bytes follow. Raises BadPayload for a message that is too long."""
    length = int.from_bytes(header, "big")
    if length > MAX_MESSAGE:
        raise BadPayload(f"a message of {length} bytes in the pipe", f"at most {MAX_MESSAGE} are taken")
    return length


def _parse(cls: type[T], data: bytes) -> T:
    try:
        return cls.FromString(data)
    except DecodeError as error:
        raise BadPayload(f"these bytes are no {cls.__name__}: {error}") from None
