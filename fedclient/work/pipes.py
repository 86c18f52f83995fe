"""What an agent and its working process say to each other: messages, each preceded by its length.

Nothing here loads asyncio: a working process waits for no two things at a time, and a light device has no
memory to spare for it.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Protocol

from shoal.core.errors import BadPayload
from shoal.core.exchange.link import Failure, Task
from shoal.core.exchange.payload import Payload

LENGTH = 4
"""Bytes of the big-endian length before each message in a pipe."""
MAX_MESSAGE = 64 << 20


@dataclass(frozen=True)
class WorkerInfo:
    """What a training process loaded. examples: their number, without the test part. device: where it
    computes.

    findings: those of a full self-check, as JSON values; see `fedclient/work/selfcheck.py`.
    """

    examples: int
    labelled: bool
    device: str
    findings: Mapping[str, Any] = field(default_factory=dict)


class TaskRunner(Protocol):
    """What `fedclient.work.runtime.Runtime` is, as far as an executor needs it."""

    info: WorkerInfo

    def perform(self, task: Task) -> Payload | Failure: ...


def framed(data: bytes) -> bytes:
    """`data` with its length before it."""
    return len(data).to_bytes(LENGTH, "big") + data


def length_of(header: bytes) -> int:
    """The number of bytes that follow. Raises BadPayload for a message that is too long."""
    length = int.from_bytes(header, "big")
    if length > MAX_MESSAGE:
        raise BadPayload(
            f"a message of {length} bytes in the pipe", f"at most {MAX_MESSAGE} bytes are accepted"
        )
    return length


def receive(source: BinaryIO) -> bytes | None:
    """The next message; None once the other side is gone."""
    header = source.read(LENGTH)
    return source.read(length_of(header)) if len(header) == LENGTH else None


def send(sink: BinaryIO, data: bytes) -> None:
    sink.write(framed(data))
    sink.flush()


def take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """The pipes to the agent. Afterwards standard input is empty and standard output is standard error."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return source, sink
