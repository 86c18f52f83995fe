"""What a run waits for, and why a round has no result: values and texts for people."""

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.core.texts import listed
from shoal.core.types import DeviceId

REASONS, NAMED, LETTERS = 3, 3, 200
"""Limits on an abandoned round's reason: how many reasons, devices named for each, characters of each."""


@dataclass(frozen=True)
class Waiting:
    """What a run waits for. devices: from whom. seconds: for how long at most; None: without a limit."""

    text: str
    devices: tuple[DeviceId, ...] = ()
    seconds: float | None = None


def reasons(missing: Mapping[DeviceId, str]) -> str:
    """Why devices are missing: each reason once, with its first devices, bounded in length."""
    devices: dict[str, list[DeviceId]] = {}
    for device, reason in sorted(missing.items()):
        devices.setdefault(" ".join(reason.split()), []).append(device)
    parts = []
    for reason, named in list(devices.items())[:REASONS]:
        cut = f"{reason[:LETTERS]}..." if len(reason) > LETTERS else reason
        parts.append(f"{listed(named, NAMED)}: {cut}")
    if len(devices) > REASONS:
        parts.append(f"and {len(devices) - REASONS} more reasons")
    return "; ".join(parts)
