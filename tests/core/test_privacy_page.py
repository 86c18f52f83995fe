"""docs/proofs.md names every field that a device can send, and no other."""

import re
from pathlib import Path
from typing import Any

from shoal.core import algorithm
from shoal.core.exchange._pb.fed.v1 import (
    blob_service_pb2,
    device_service_pb2,
    enrollment_service_pb2,
    placement_service_pb2,
)
from shoal.core.exchange.messages import STANDARD
from shoal.core.exchange.payload import fields_of
from shoal.core.exchange.summing import SECURE

PAGE = Path(__file__).parent.parent.parent / "docs" / "proofs.md"
SERVICES: tuple[tuple[Any, str], ...] = (
    (device_service_pb2, "DeviceService"),
    (blob_service_pb2, "BlobService"),
    (placement_service_pb2, "PlacementService"),
    (enrollment_service_pb2, "EnrollmentService"),
)
REPORTED = {f"fed.v1.{name}" for name in ("Payload", "Descriptor", "Scores", "Prototypes")}
"""Results, which have rows by the fields of their messages."""


def fields_under(message: Any, found: set[str]) -> set[str]:
    """Every field of a request, and of the messages in it."""
    for field in message.fields:
        name = f"{message.name}.{field.name}"
        if name not in found:
            found.add(name)
            inner = field.message_type
            if inner and inner.full_name.startswith("fed.v1.") and inner.full_name not in REPORTED:
                fields_under(inner, found)
    return found


def named(table: str) -> list[str]:
    """The fields in the first column of a table of the page."""
    section = PAGE.read_text().partition("## Field by field")[2].partition(table)[2]
    rows = re.findall(
        r"^\| (`[^|]*)\|", section.partition("\n\n**")[0].partition("\n\nBesides")[0], re.MULTILINE
    )
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_every_field_of_a_call_is_described() -> None:
    sent: set[str] = set()
    for module, service in SERVICES:
        for method in module.DESCRIPTOR.services_by_name[service].methods:
            fields_under(method.input_type, sent)
    assert len(sent) > 40
    described = named("**Calls.**")
    assert sorted(described) == sorted(sent)


def test_every_field_of_a_report_is_described() -> None:
    every = (
        *STANDARD,
        *SECURE,
        *(message for card in algorithm.discover().values() for message in card.messages),
    )
    replies = {message.reply for message in every if hasattr(message, "reply")}
    sent = {f"{reply.kind}.{name}" for reply in replies for name in fields_of(reply)}
    assert len(sent) > 40
    described = named("**Reports.**")
    assert sorted(described) == sorted(sent)
