"""What the tests of hostile messages share: overlong texts, fields from nowhere, and how a lie is caught."""

from typing import Any

import pytest
from google.protobuf.message import Message as Protobuf

from shoal.core.errors import BadPayload
from shoal.core.exchange import wire
from tests.core.exchange.wire_values import DECODERS

LONG_NAME, LONG_TEXT = "x" * 257, "x" * (wire.MAX_TEXT + 1)
UNKNOWN = b"\xf8\x3f\x01"  # field 1023, a varint of 1

Lies = dict[str, tuple[Protobuf, str]]
"""Messages by what is wrong with them, and what of it the error says."""


def caught(lie: tuple[Protobuf, str]) -> None:
    """Fails unless the decoder names the lie, and not at length."""
    message, expected = lie
    received = type(message).FromString(message.SerializeToString())
    with pytest.raises(BadPayload) as error:
        DECODERS[type(message)](received)
    assert expected in str(error.value)
    assert len(str(error.value)) < 1000


def with_unknown(message: Protobuf) -> Any:
    """The same message from a newer peer: it has one field more."""
    return type(message).FromString(message.SerializeToString() + UNKNOWN)
