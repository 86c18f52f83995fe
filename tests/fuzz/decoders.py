"""Every decoder that a peer can reach, each as a function of bytes: it gives a value or raises BadPayload.

Both directions are here: what a server reads of devices and of strangers at the port for joining, and what a
device reads of servers, of a join string, and of its own disk.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.algorithm import discover
from shoal.core.algorithm.asks import terms_of
from shoal.core.errors import BadPayload, ConfigError
from shoal.core.exchange import admit, wire
from shoal.core.exchange._pb.fed.v1 import (
    blob_service_pb2,
    device_service_pb2,
    enrollment_service_pb2,
    fault_pb2,
    observer_service_pb2,
    placement_service_pb2,
)
from shoal.core.exchange.link import Failure
from shoal.core.exchange.messages import Describe, Message, Train, TrainingSettings
from shoal.core.exchange.seal import Seal
from shoal.core.identity import certificates, join
from shoal.core.privacy.asks import read_terms

GOLDEN = Path(__file__).parents[2] / "proto/vectors/messages"
CORPUS = Path(__file__).parent / "corpus"

MODEL = {"w": np.array([[1.5, -0.0]], np.float32)}
PROJECTOR = {"mean": np.zeros(2), "components": np.eye(2)}
TASKS: tuple[Message, ...] = (
    Train(MODEL, TrainingSettings(), projector=PROJECTOR, classes=1),
    Describe(MODEL, PROJECTOR, 1),
)


def of(cls: type[Any], decode: Callable[[Any], object]) -> Callable[[bytes], object]:
    """The decoder of a message, on its bytes."""
    return lambda data: decode(wire.message_from_bytes(cls, data))


def reported(request: device_service_pb2.ReportRequest) -> None:
    """A report up to the point at which its tensors would be opened."""
    report = wire.report_from_pb(request.report)
    if isinstance(report.result, Failure):
        return
    for task in TASKS:
        try:
            admit.admit_payload(task, report.result)
        except BadPayload:
            continue


def uploaded(data: bytes) -> object:
    """The first message of an upload, or a later one."""
    try:
        return wire.upload_start(data)
    except BadPayload:
        return wire.uploaded(data, 0)


def join_string(data: bytes) -> object:
    """What an owner types in: a wrong one is the owner's to fix."""
    try:
        return join.parse(data.decode("utf-8", "replace"))
    except ConfigError as error:
        raise BadPayload(error.message, error.hint) from None


TARGETS: Mapping[str, Callable[[bytes], object]] = {
    # what a server reads
    "hello": of(device_service_pb2.HelloRequest, wire.hello_from_pb),
    "next-task": of(device_service_pb2.NextTaskRequest, lambda pb: wire.seconds_from_pb(pb.wait, "wait")),
    "alive": of(device_service_pb2.AliveRequest, lambda pb: wire.lease_from_pb(pb.lease)),
    "report": of(device_service_pb2.ReportRequest, reported),
    "place": of(placement_service_pb2.PlaceRequest, wire.place_from_pb),
    "upload": uploaded,
    "fetch": of(blob_service_pb2.FetchRequest, lambda pb: wire.blob_from_pb(pb.blob)),
    "join": of(enrollment_service_pb2.JoinRequest, wire.joining_from_pb),
    "return": of(enrollment_service_pb2.ReturnRequest, wire.returning_from_pb),
    "certificate-request": certificates.key_of_request,
    # what a device reads
    "welcome": of(device_service_pb2.HelloResponse, wire.welcome_from_pb),
    "task": of(device_service_pb2.NextTaskResponse, wire.next_from_pb),
    "receipt": of(device_service_pb2.ReportResponse, lambda pb: wire.receipt_from_pb(pb.receipt)),
    "answer": of(placement_service_pb2.PlaceResponse, wire.answer_from_pb),
    "seal": Seal.read,
    "chunk": lambda data: wire.fetched(data, 0),
    "observation": of(observer_service_pb2.ObserveRunsResponse, wire.observation_from_pb),
    "fault": of(fault_pb2.Fault, wire.fault_from_pb),
    "challenge": of(enrollment_service_pb2.ChallengeResponse, wire.challenge_from_pb),
    "joined": of(enrollment_service_pb2.JoinResponse, wire.admitted_from_pb),
    "identity": of(enrollment_service_pb2.Identity, wire.identity_from_pb),
    "certificate": certificates.certificate,
    "join-string": join_string,
    "terms": lambda data: read_terms(data.decode("utf-8", "replace")),
    # what both read of their disks and pipes
    "stored-task": wire.task_from_bytes,
    "stored-report": wire.report_from_bytes,
    "stored-payload": wire.payload_from_bytes,
}


def survive(name: str, data: bytes) -> None:
    """Read bytes as a peer would have us do: whatever is raised but BadPayload is a bug of ours."""
    try:
        TARGETS[name](data)
    except BadPayload:
        return


def seeds() -> dict[str, list[bytes]]:
    """What each decoder is tried on first: recorded bytes of every message, and what is kept in the corpus.

    A file of the corpus is called TARGET-WHATEVER.bin.
    """
    recorded = [path.read_bytes() for path in sorted(GOLDEN.glob("*.bin"))]
    found = {}
    for name in TARGETS:
        kept = [path.read_bytes() for path in sorted(CORPUS.glob(f"{name}-*.bin"))]
        if name == "terms":
            kept += [terms_of(card, card.configure()).encode() for _, card in sorted(discover().items())]
        found[name] = [*kept, *recorded, *(inside(field, data) for field in (1, 2) for data in recorded)]
    return found


def inside(field: int, data: bytes) -> bytes:
    """A message, below 16 kB, as that field of another: requests and answers have theirs in 1 or 2."""
    return bytes([field << 3 | 2, len(data) & 127 | 128, len(data) >> 7]) + data
