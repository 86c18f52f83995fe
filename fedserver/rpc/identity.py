"""Who is calling. The one place: with certificates the answer will come from the TLS peer instead."""

import re
from typing import Any

from grpc import aio

from fedcore.errors import BadPayload
from fedcore.types import DeviceId

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def identify(context: aio.ServicerContext[Any, Any]) -> DeviceId:
    """The device that calls, by its own word: only for plain text on loopback. Raises BadPayload."""
    device = _entry(context, "shoal-device")
    if not NAME.fullmatch(device):
        raise BadPayload(
            f"metadata shoal-device is {device[:64]!r}, which is not a device's name",
            "use 1 to 64 letters, digits, dots, dashes and underscores, a letter or digit first",
        )
    return device


def session(context: aio.ServicerContext[Any, Any]) -> str:
    """The session that the caller says it is in, for calls whose request has no place for it."""
    return _entry(context, "shoal-session")


def _entry(context: aio.ServicerContext[Any, Any], name: str) -> str:
    values = [value for key, value in context.invocation_metadata() or () if key == name]
    return values[0] if len(values) == 1 and isinstance(values[0], str) else ""
